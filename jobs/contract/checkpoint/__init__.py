"""The files of the trainer's checkpoints, for trainer and commands; a part of the contract.

- names: the names in the folder of checkpoints, their order, the pointers `latest` and `best`.
- manifest: the files of a checkpoint and their digests, and the bytes of its manifest.
- part_file: the file of a rank.
- reader: reads a committed checkpoint and checks every byte.

Standard library only. It stands in jobs/, because the commands check and copy checkpoints and must
not import the trainer; of the trainer only `checkpoint/` writes such files (commit).
"""
