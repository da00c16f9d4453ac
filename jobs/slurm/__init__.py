"""Slurm's clients and what a site's Slurm does. Standard library only, but for the executor."""
