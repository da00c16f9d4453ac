"""A module for each command; views are shared parts.

- catalogue: the commands, the module of each, and the command line.
- arguments: arguments that several commands have.
- make_words: reads what a user types to make.
- submit: freezes a spec and runs it, on Slurm or here.
- queue: hands a run directory to sbatch.
- adopt: makes the run directory of a job that plain sbatch started.
- resume: continues a run that stopped before its end, perhaps changed, or a group.
- submit_claim: lets one command at a time queue or cancel the jobs of a run.
- freeze: makes a run directory without starting it.
- cancel: stops a run.
- local: runs the attempts of a run on this machine, without Slurm.
- packages: names the Python packages that a run lacks.
- status: lists the runs and their states, or one run in detail.
- logs: shows or follows the logs of one rank over all attempts, or the first error.
- why: prints why a run waits, ended or is held, and what to do.
"""
