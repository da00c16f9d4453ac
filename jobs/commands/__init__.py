"""A module for each command, and what several commands share.

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
- local_lines: what a run on this machine prints of its progress and end.
- table: prints rows as columns, or below each other.
"""
