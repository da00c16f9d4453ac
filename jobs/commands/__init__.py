"""The kit's commands.

- submit: freezes a spec and runs it, on Slurm or here.
- queue: hands a run directory to sbatch.
- adopt: makes the run directory of a job that plain sbatch started.
- resume: continues a run that stopped before its end.
- status: lists the runs and their states.
- run_jobs: finds the Slurm jobs of a run.
- submit_claim: lets one command at a time queue or cancel the jobs of a run.
- logs: shows the log of one rank.
- cancel: stops a run.
- init: prepares a repository of the user for the installed kit.
- export: writes the weights of a checkpoint into one file.
- local: runs the attempts of a run on this machine, without Slurm.
- packages: names the Python packages that a run lacks; installs .venv.
- live_progress: the progress line of a local run.
"""
