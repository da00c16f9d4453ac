"""Finds nodes and ranks at fault: tests each node before a training, and ends a hang of one.

- hooks: the callback of a rank.
- preflight: a short test of each node before the training.
- rank_report: which ranks answered the preflight, and which did not.
- gpu_health: the health counters of a GPU, from NVML.
- phases: the phases of a rank's start-up, and how long a rank may be without progress.
- watchdog: finds a hang and ends the attempt.
- diagnosis: which rank the others wait for in a hang, and where it is.
- failures: the errors with which this plugin ends a rank.
"""
