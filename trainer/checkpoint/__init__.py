"""The state of a training: what a checkpoint holds, saved beside the training and loaded.

jobs/contract/checkpoint/ reads the files of a checkpoint. The last three of these import no torch.

- checkpoints: saves the state of a training; loads one.
- saved_state: the parts of a saved state, how it is restored, and which training it fits.
- outline: the files of a saved state: plain values, and the place of each tensor.
- staging: copies the state into host memory, so that the training can continue.
- loading: reads the newest undamaged checkpoint while the ranks build their models.
- share: broadcasts a saved state from rank 0, tensor by tensor.
- digest: SHA-256 of weights and optimizer state.
- writer: the thread that writes a checkpoint.
- commit: the protocol that makes a checkpoint durable, and removes older ones; who may commit.
- recovery: finds the newest undamaged checkpoint of a run; renames damaged ones.
"""
