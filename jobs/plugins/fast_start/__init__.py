"""A faster start: ranks forked out of a process that has imported torch once for all of a node.

- hooks: turns the command of torchrun into one that forks the trainer's ranks.
- preload: runs torchrun beside a fork server that imports what the trainer's ranks need.
- forked_rank: a rank of the trainer, as a fork of that server.
"""
