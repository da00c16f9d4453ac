"""Checkpoints: what is saved, how it becomes durable, how it is read.

- checkpoints: when to save and what; restores a saved state.
- staging: copies the state into host memory, beside the training.
- writer: the thread that writes a checkpoint.
- commit: the protocol that makes a checkpoint durable, and removes older ones.
- reader: finds, checks and reads committed checkpoints; puts damaged ones aside.
- weights: weights from checkpoints and safetensors files.
- ownership: whether this attempt may still write.
- digest: SHA-256 of weights and optimizer state.
- export: writes the weights of a checkpoint as safetensors.
"""
