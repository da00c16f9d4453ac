"""Checks of GPUs: how a spec may ask for them, and whether the ranks of a node see them.

- hooks: the spellings of a spec, the GPUs of a step, and the check of a node.
- node_check: whether the ranks will see the GPUs that the job asked for.
"""
