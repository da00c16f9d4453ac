"""Checkpoints: their content, how they become durable, how they are read back.

- checkpoints: saves the state of a training; loads one.
- read_ahead: reads the newest checkpoint while the ranks build their models.
- state: the parts of a saved state, its file, and how it is restored.
- interval: the time between two periodic checkpoints.
- share: broadcasts a saved state from rank 0, tensor by tensor.
- staging: copies the state into host memory, so that the training can continue.
- writer: the thread that writes a checkpoint.
- commit: the protocol that makes a checkpoint durable, and removes older ones.
- manifest: the names in a checkpoint directory, and the bytes of its manifest.
- reader: finds, checks and reads committed checkpoints; renames damaged ones.
- weights: weights from checkpoints and safetensors files.
- ownership: whether this attempt still owns the run.
- digest: SHA-256 of weights and optimizer state.
- export: writes the weights of a checkpoint as safetensors.
"""
