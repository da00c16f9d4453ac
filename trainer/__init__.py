"""The DDP trainer: `torchrun ... -m trainer RUN_DIR`, one process per rank.

Reads top to bottom: `__main__` (stop handler) -> `run` (start, train, leave) -> `build` (model and
state) -> `loop` (the steps). Of `jobs` it imports only `jobs.spec` and `jobs.rundir`.
"""
