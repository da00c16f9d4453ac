"""Removes variables of the user's shell that break Slurm's commands, git, torchrun or the ranks.

- hooks: the names of these variables for each kind of program, and those that launch.env refuses;
  the Python of the ranks where that of the kit has no torch.
"""
