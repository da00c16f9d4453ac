"""Slurm's clients and what a site's Slurm does. Standard library only, but for the executor.

- ask: runs Slurm's commands, with a time limit and again while slurmctld does not answer.
- cluster: the Slurm of this host: its settings, partitions and nodes.
- duration: Slurm's time formats.
- executor: submits for a user's command, through submitit.
- job: what Slurm shows of one job, and the requests about it.
- job_list: many jobs at once, from squeue and sacct.
- job_state: which states of a job wait, hold nodes, end, or have ended.
- refusals: the key that a message of a refused job may be about.
- sbatch: the command line of sbatch for a run, and its answer.
"""
