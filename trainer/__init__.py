"""The DDP trainer: `torchrun ... -m trainer RUN_DIR`, one process per rank.

Read it in this order: `__main__` (stop handler), `run` (start, train, exit), `model/build` (model
and optimizer), `loop` (the steps). Of `jobs` it imports only the contract: the spec, the paths and
records of the run directory, errors, output.
"""
