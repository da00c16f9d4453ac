"""Slurm's clients and what a site's Slurm does. Standard library only.

- client: runs sbatch, squeue, scontrol, sacct, scancel, and parses their output.
- duration: Slurm's time formats.
- sbatch: the argv and the environment of sbatch for a run.
- site: what the site's Slurm does with preempted jobs.
- site_warnings: what a spec will meet at a site, before it is queued.
"""
