"""Adds checks before the queue: the keys of a training, and its parts, built once; or --no-check.

- hooks: builds the parts in a process of its own; what it found is shown like mistakes in the spec.
- first_error: the error that that process met.
- train_keys: what the types of train and checkpoint.best cannot express.
"""
