"""Checkpoints as files: how they become durable, how they are read back. Imports no torch.

- commit: the protocol that makes a checkpoint durable, and removes older ones.
- part_file: the file of a rank, of which other ranks read and check what they need.
- manifest: the names in a checkpoint directory, and the bytes of its manifest.
- reader: finds, checks and reads committed checkpoints; renames damaged ones.
- writer: the thread that writes a checkpoint.
- space: whether the checkpoints that are kept fit on the disk and into the quota.
- ownership: whether this attempt still owns the run.
"""
