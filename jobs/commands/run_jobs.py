"""The Slurm jobs of a run: those that its directory names, and those in the user's queue."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from slurm_job_kit.jobs import shared_files
from slurm_job_kit.jobs.errors import FailedError, UserError
from slurm_job_kit.jobs.rundir import RunDir
from slurm_job_kit.jobs.runs import facts, interpret, lookup, run_lock
from slurm_job_kit.jobs.slurm import job_list
from slurm_job_kit.jobs.slurm.client import Life


def lives_of(run_dir: RunDir) -> dict[str, Life]:
    """The jobs that a run directory names, by id, each with whether it lives.

    What Slurm does not show is known to have ended where the run's own files have its end.
    """
    jobs, owner = lookup.jobs_of(run_dir), run_lock.read(run_dir)
    found = {job.job_id: job_list.life_of(job) for job in jobs}
    if owner is not None and not owner.is_local and owner.job_id not in found:
        found[owner.job_id] = run_lock.life_of(owner)
    if owner is None and jobs and has_recorded_end(run_dir, jobs[0].job_id):
        found = {job_id: life for job_id, life in found.items() if life.is_alive is not None}
    return found


def has_recorded_end(run_dir: RunDir, job_id: str) -> bool:
    """Whether the run's files have the end of the run with this job, its last one."""
    if interpret.is_end_recorded(facts.last_record(run_dir), job_id):
        return True
    try:  # read, not looked for: a client of NFS may show the name for a minute after its deletion
        return job_id in shared_files.read_text(run_dir.cancelled).split()
    except OSError:
        return False


def unended(run_dir: RunDir) -> list[str]:
    """The ids of the run's jobs that are queued or run, or of which Slurm gives no answer.

    Raises: UserError where it has none but those that Slurm may hide.
    """
    lives = lives_of(run_dir)
    hidden = [life for life in lives.values() if life.is_alive is None and not life.is_silent]
    found = [job_id for job_id, life in lives.items() if life.is_alive or life.is_silent]
    found = list(dict.fromkeys([*found, *(in_queue(run_dir) or ())]))
    if hidden and not found:
        raise refusal(run_dir, hidden)
    return found


def refusal(run_dir: RunDir, unknown: Sequence[Life]) -> UserError | FailedError:
    """The error of a command that would do harm if the run's job or process still lived."""
    life = unknown[0]
    text = f"{run_dir.run_id}: {life.why}\n  hint: {life.hint}"
    return FailedError(text) if life.is_silent else UserError(text)


def in_queue(run_dir: RunDir) -> list[str] | None:
    """The ids of the user's queued and running jobs whose batch script gets this run directory.

    None where squeue does not answer. A plain `sbatch slurm/ddp.sbatch RUN_DIR` records its job
    only once it starts.
    """
    path, jobs = run_dir.path.resolve(), job_list.known_queue()
    return None if jobs is None else [job.job_id for job in jobs if target_of(job) == path]


def target_of(job: job_list.QueuedJob) -> Path | None:
    """What a queued job's batch script gets; None for another script, and where Slurm hides it."""
    if not job.is_cut:
        return job.target
    recorded = lookup.recall(job.job_id)
    return None if recorded is None else recorded.path.resolve()
