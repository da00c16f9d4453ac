"""Adds the command sweep: many runs that differ in a few keys, as one job array on Slurm.

- hooks: finds a sweep by its folder, its id or its job array.
- sweep: queues the points as an array, or runs them here in turn; resume continues them.
- points: the points of a sweep, from the section of a file and the command line.
- record: the folder of a sweep and sweep.json.
"""
