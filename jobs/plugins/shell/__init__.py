"""Adds the command shell: a shell on the node of a running rank, inside the run's allocation.

- shell: prints its srun line, or runs it.
"""
