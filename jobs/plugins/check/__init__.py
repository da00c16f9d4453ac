"""Adds checks of a spec's keys, and before the queue of its parts, built once; or --no-check.

- hooks: builds the parts in a process of its own; what it found is shown like mistakes in the spec.
- launch_keys: what the types of name, slurm and launch cannot express.
- train_keys: what the types of train and checkpoint.best cannot express.
"""
