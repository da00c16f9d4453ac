"""Bad nodes, hangs, and the time that a stop needs.

- preflight: a short test of each node before the training.
- rank_report: which ranks answered the preflight, and which did not.
- gpu_health: what NVML reports about a GPU.
- phases: the phases of a rank's start-up, and how long each may take.
- watchdog: finds a hang and ends the attempt.
- diagnosis: which rank does not progress, and where it is.
- lead_time: whether the warning before the time limit comes early enough.
"""
