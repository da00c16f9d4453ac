"""Slurm's clients and what a site's Slurm does. Standard library only, but for the executor.

- client: runs sbatch, scontrol, scancel, and parses their output; one job at a time.
- duration: Slurm's time formats.
- executor: submits for a user's command, through submitit.
- hostlist: the names in a list of nodes.
- job_list: many jobs at once, from squeue and sacct.
- job_state: which states of a job wait, hold nodes, end, or have ended.
- refusals: the key that a message of a refused job may be about.
- sbatch: the argv and the environment of sbatch for a run.
- site: the settings of this Slurm that each run needs.
"""
