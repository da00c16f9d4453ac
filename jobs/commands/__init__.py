"""The kit's commands.

- submit: freezes a spec and runs it, on Slurm or here.
- queue: hands a run directory to sbatch.
- points: runs points of a sweep, as a job array or here.
- adopt: makes the run directory of a job that plain sbatch started.
- resume: continues a run that stopped before its end, or a sweep.
- continuing: continues one run, perhaps changed.
- run_jobs: finds the Slurm jobs of a run.
- submit_claim: lets one command at a time queue or cancel the jobs of a run.
- freeze: makes a run directory without starting it.
- compare: compares two runs bit for bit.
- cancel: stops a run.
- clean: deletes what ended and never-started runs no longer need.
- init: prepares a repository of the user for the installed kit.
- export: writes the weights of a checkpoint into one file.
- local: runs the attempts of a run on this machine, without Slurm.
- packages: names the Python packages that a run lacks; installs .venv.
"""
