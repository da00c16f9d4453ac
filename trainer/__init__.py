"""The trainer: `torchrun ... -m trainer RUN_DIR`, one process per rank.

docs/architecture.md has the order in which to read it.

A folder imports only those before it in this list: process, data, strategy, model,
checkpoint, training. All import what lies beside them here: contract (what the trainer takes of
jobs), parts, errors, seeds, user_code. api is for parts of one's own; hooks calls the plugins.
"""
