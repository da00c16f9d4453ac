"""Slurm's clients and what a site's Slurm does. Standard library only, but for the executor.

- available: compares the names in a spec with the partitions, accounts, QOS and features of a site.
- client: runs sbatch, scontrol, scancel, and parses their output; one job at a time.
- duration: Slurm's time formats.
- executor: submits for a user's command, through submitit.
- hostlist: the names in a list of nodes.
- job_list: many jobs at once, from squeue and sacct; who cancelled a job.
- job_state: which states of a job wait, hold nodes, end, or have ended.
- pending: explains why a job waits, for each reason of squeue.
- refusals: the keys that a message of a refused job is about.
- sbatch: the argv and the environment of sbatch for a run.
- site: the settings of the site's Slurm: limits, preemption, requeue.
- site_warnings: checks a spec against a site, before the job is queued.
"""
