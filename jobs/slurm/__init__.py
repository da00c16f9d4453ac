"""Slurm's clients and what a site's Slurm does. Standard library only, but for the executor.

- client: runs sbatch, squeue, scontrol, sacct, scancel, and parses their output.
- duration: Slurm's time formats.
- executor: submits for a user's command, through submitit.
- sbatch: the argv and the environment of sbatch for a run.
- site: what the site's Slurm does with preempted jobs.
- site_warnings: what a spec will meet at a site, before it is queued.
"""
