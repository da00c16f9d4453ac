"""A simulated Slurm that drives the kit's own decisions, and measurements of small real runs.

- costs: what each part of an attempt costs, and how often what fails; each with its source.
- slurm: the simulated slurmctld: nodes, queue, and the answers to the kit's commands.
- kit: from what happened to the facts of an attempt, through the kit's code to its exit code.
- world: the events: starts, faults, closes; the sums of useful, allocated and queued time.
- check: the simulator's time of small real runs with the same faults.
- ranks: small runs on the real Slurm of tests/slurm: counts and CPU seconds by number of ranks.
- files: how long the kit takes to read the files of an attempt with thousands of ranks.
- __main__: the tables of `make bench-scale`.

The simulator has no policy. It makes the facts that `attempt.close` reads, calls the kit's code,
and answers the commands that this code runs (`scontrol requeue` and others) as slurmctld does.
"""
