"""Removes variables of the user's shell that break Slurm's commands, git, torchrun or the ranks.

- hooks: removes the variables of each kind of program, and refuses some in launch.env.
- lists: the names of these variables.
"""
