"""The command resume: continue a run that was held, cancelled, interrupted or lost."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.attempt import history, run_lock
from jobs.commands.status import waiting_job
from jobs.commands.submit import announce, choose_cluster, run_here, shown
from jobs.errors import FailedError, UserError
from jobs.rundir import RunDir
from jobs.runs import checkpoints, lookup, purge, spec_changes
from jobs.slurm import client
from jobs.spec import Spec


def resume(
    run_dir: RunDir, overrides: Sequence[str], cluster: str, is_confirmed: bool, as_json: bool
) -> int:
    """Go on with a run that was held, cancelled, interrupted or lost."""
    if history.is_complete(run_dir):
        return nothing_to_resume(run_dir, overrides)
    cluster = choose_cluster(cluster)
    refuse_living(run_dir, cluster)
    purge.check(run_dir)
    spec_changes.mend_setup(run_dir)
    before = spec_changes.change(run_dir, overrides, is_confirmed) if overrides else {}
    if cluster == "local":
        return run_here(run_dir, as_json)
    from jobs.commands.queue import queue

    try:
        job_id = queue(Spec.read(run_dir.spec), run_dir)
    except FailedError:
        spec_changes.restore(before)
        raise
    announce(run_dir, job_id, as_json)
    return 0


def refuse_living(run_dir: RunDir, cluster: str) -> None:
    """Raises: UserError for a run that is queued or runs; FailedError if Slurm cannot say."""
    job_id, waiting, present = (
        lookup.job_id_of(run_dir),
        waiting_job(run_dir),
        run_lock.read(run_dir),
    )
    if job_id is not None and (alive := client.is_alive(job_id)) is not False:
        if alive:
            raise UserError(f"{run_dir.run_id} is queued or running as job {job_id}")
        if cluster == "slurm":
            raise FailedError(f"Slurm does not say whether job {job_id} still runs: try again")
    if waiting is not None and client.is_alive(waiting):
        raise UserError(f"{run_dir.run_id} is queued as job {waiting}, which goes on by itself")
    if present is not None and run_lock.is_alive(present):
        raise UserError(f"{run_dir.run_id} is running as {present.job_id}")


def nothing_to_resume(run_dir: RunDir, overrides: Sequence[str]) -> int:
    """Say that a run is complete, and how to train on from its weights."""
    there = f"{run_dir.run_id} is complete, there is nothing to resume"
    how = "submit a new run"
    if not checkpoints.is_foreign(run_dir):
        how += f" with train.init_from={shown(run_dir.path)}"
    if overrides:
        raise UserError(f"{there}, so nothing is changed\n  hint: to train on, {how}")
    print(f"{there}; to train on, {how}")
    return 0
