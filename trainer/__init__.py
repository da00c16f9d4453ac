"""The trainer: `torchrun ... -m trainer RUN_DIR`, one process per rank.

Read it in this order: `__main__` (stop handler), `run` (start, train, exit), `model/training_data`
(the batches), `model/build` (model and optimizer), `checkpoint/checkpoints` (the state), `loop`
(the steps). `contract` has all that it takes of `jobs`: of the
modules at its top but `__main__`, and of the rooms records and checkpoint.

top: run, loop, evaluation, saves, training_means, api

base: contract, parts, errors, stop, seeds, user_code, events

hooks: hooks
"""
