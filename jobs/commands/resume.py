"""The command resume: continue a run that was held, cancelled, interrupted or lost."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from jobs.attempt import facts, run_lock
from jobs.commands import packages, run_jobs
from jobs.commands.submit import announce, choose_cluster, run_here, shown
from jobs.commands.submit_claim import claimed
from jobs.errors import FailedError, UserError
from jobs.rundir import RunDir
from jobs.runs import checkpoints, lookup, scratch_purge, spec_changes
from jobs.slurm import client
from jobs.spec import Spec


def resume(
    run_dir: RunDir, overrides: Sequence[str], cluster: str, is_confirmed: bool, as_json: bool
) -> int:
    """Continue a run with changed keys of its spec; returns the exit code.

    Raises: UserError, FailedError; then the run is as it was, with no new job.
    """
    if facts.is_complete(run_dir):
        return nothing_to_resume(run_dir, overrides)
    cluster = choose_cluster(cluster)
    with claimed(run_dir):
        refuse_living(run_dir, cluster)
        scratch_purge.check(run_dir)
        spec_changes.mend_setup(run_dir)
        changed = spec_changes.change(run_dir, overrides, is_confirmed) if overrides else {}
        with restored_on_failure(run_dir, changed):
            spec_changes.mend_work(run_dir)
            packages.check_interpreter(Spec.read(run_dir.spec))
            job_id = None if cluster == "local" else queue_again(run_dir)
    if job_id is None:
        return run_here(run_dir, as_json)
    announce(run_dir, job_id, as_json)
    return 0


def queue_again(run_dir: RunDir) -> str:
    """Queue another job for the run; returns its id. Raises: FailedError."""
    from jobs.commands.queue import queue

    return queue(Spec.read(run_dir.spec), run_dir)


@contextlib.contextmanager
def restored_on_failure(run_dir: RunDir, changed: dict[Path, str]) -> Iterator[None]:
    """A block in which the run is not cancelled; if it fails, files get their old texts back.

    `changed`: the old texts of the spec's files.
    """
    with contextlib.suppress(FileNotFoundError):
        changed = changed | {run_dir.cancelled: run_dir.cancelled.read_text(encoding="utf-8")}
        run_dir.cancelled.unlink()
    try:
        yield
    except BaseException:
        spec_changes.restore(changed)
        raise


def refuse_living(run_dir: RunDir, cluster: str) -> None:
    """Raises: UserError for a run that is queued or runs; FailedError if Slurm does not answer."""
    job_id, waiting = lookup.job_id_of(run_dir), run_jobs.waiting_job(run_dir)
    if job_id is not None and (alive := client.is_alive(job_id)) is not False:
        if alive:
            raise UserError(f"{run_dir.run_id} is queued or running as job {job_id}")
        if cluster == "slurm":
            raise FailedError(
                f"Slurm does not answer whether job {job_id} still runs\n  hint: try again"
            )
    if waiting is not None and client.is_alive(waiting):
        raise UserError(f"{run_dir.run_id} is queued as job {waiting}, which continues it")
    if queued := run_jobs.in_queue(run_dir):
        raise UserError(f"{run_dir.run_id} is queued or running as job {queued[0]}")
    owner = run_lock.read(run_dir)
    if owner is not None and run_lock.is_alive(owner):
        raise UserError(f"{run_dir.run_id} is running as {owner.job_id}")


def nothing_to_resume(run_dir: RunDir, overrides: Sequence[str]) -> int:
    """Print that a run is complete and how to train on from its weights; returns 0.

    Raises: UserError if the user wanted to change its spec.
    """
    complete = f"{run_dir.run_id} is complete, there is nothing to resume"
    how = "submit a new run"
    if not checkpoints.is_foreign(run_dir):
        how += f" with train.init_from={shown(run_dir.path)}"
    if overrides:
        raise UserError(f"{complete}, so nothing is changed\n  hint: to train on, {how}")
    print(f"{complete}; to train on, {how}")
    return 0
