"""The Slurm job kit as one package: jobs, trainer and slurm of this repository, by links.

All code imports the kit by this name. A repository of a user may have packages `jobs` and `trainer`
of its own.
"""
