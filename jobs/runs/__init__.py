"""Run directories: found, made, read and checked.

- lookup: finds a run by directory, run id, job id or name.
- group: runs that a plugin made together.
- state: in which state a run is, from its files and one answer of Slurm.
- fact_reader: reads the files of a run and what agents and ranks wrote in an attempt, each once.
- silent_end: the ends of processes that wrote no record, from the logs and torchrun's output.
- facts: what these files show, as values.
- evidence: how an attempt ended, by what its ranks and agents wrote.
- results: the steps of a run, and its result.
- places: finds the line of the user's code that a traceback shows.
- run_lock: which job may write into the run directory (owner.json).
- freeze: makes a run directory from a loaded spec.
- code_snapshot: the read-only copy of the user's code, shared by equal copies.
- code_secrets: which files may be secrets, and are left out of it.
- git: runs git for its output.
- ownership: whose files a run may execute; the modes of the folders that the kit makes.
- revision: changes a run between two attempts, all of it or nothing.
- scratch_purge: names what a scratch purge deleted.
- checkpoint_lookup: the name of the newest committed checkpoint.
- frozen_spec: the spec of a run as its user wrote it, and how another one differs.
"""
