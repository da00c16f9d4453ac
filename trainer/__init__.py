"""The trainer: `torchrun ... -m trainer RUN_DIR`, one process per rank.

Read it in this order: `__main__` (stop handler), `run` (start, train, exit), `model/training_data`
(the batches), `model/build` (model and optimizer), `checkpoint/checkpoints` (the state), `loop`
(the steps). Of `jobs` it imports only the contract: the modules at its top but `__main__`, and the
rooms records and checkpoint.

top: run, loop, evaluation, saves, training_means, api, check, findings

base: errors, stop, seeds, user_code, events
"""
