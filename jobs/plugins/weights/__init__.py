"""A new run begins with weights from files: train.init_from.

- hooks: checks that key.
"""
