"""Models too large for one rank: fsdp and hsdp, blocks, initial weights without the whole model.

- hooks: names the strategies.
- in_blocks: what all strategies of this plugin do, ddp with that, and which model fits them.
- blocks: finds the repeated parts of a model; compiles and checkpoints them one by one.
- meta_init: initial weights of a model that is too large to create whole.
- fsdp: each rank has its rows of everything; hsdp, too.
- checkpoints: each rank saves and loads its rows.
"""
