"""The trainer: `torchrun ... -m trainer RUN_DIR`, one process per rank.

Read it in this order: `__main__` (stop handler), `training/run` (start, train, exit),
`model/training_data` (the batches), `model/build` (model and optimizer), `checkpoint/checkpoints`
(the state), `training/loop` (the steps).

A folder imports only those before it in this list: process, data, strategy, model,
checkpoint, training. All import what lies beside them here: contract (all that the trainer takes of
jobs), parts, errors, seeds, user_code. api is for parts of one's own; hooks calls the plugins.
"""
