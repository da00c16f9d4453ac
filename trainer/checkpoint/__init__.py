"""The state of a training: what a checkpoint holds, saved beside the training and loaded.

- checkpoints: saves the state of a training; loads one.
- read_ahead: reads the newest checkpoint while the ranks build their models.
- state: the parts of a saved state, its file, and how it is restored.
- interval: the time between two periodic checkpoints.
- share: broadcasts a saved state from rank 0, tensor by tensor.
- staging: copies the state into host memory, so that the training can continue.
- weights: weights from checkpoints and safetensors files.
- digest: SHA-256 of weights and optimizer state.
- export: writes the weights of a checkpoint as safetensors.
"""
