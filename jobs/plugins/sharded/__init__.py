"""Models too large for one rank: fsdp and hsdp, blocks, initial weights without the whole model.

- hooks: checks the keys that they need and exclude.
"""
