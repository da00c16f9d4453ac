"""The Slurm jobs of a run: those that its directory names, and those in the user's queue."""

from __future__ import annotations

from pathlib import Path

from slurm_job_kit.jobs.rundir import RunDir
from slurm_job_kit.jobs.runs import lookup, state
from slurm_job_kit.jobs.runs.state import RunState
from slurm_job_kit.jobs.slurm import job_list
from slurm_job_kit.jobs.slurm.client import Job


def unended(run: RunState) -> dict[str, Job | None]:
    """The run's jobs that are queued or run, or of which Slurm gives no answer, by their ids.

    Raises: UserError where it has none but those that Slurm may hide.
    """
    lives = run.lives
    hidden = [life for life in lives.values() if life.is_alive is None and not life.is_silent]
    found = {job_id: life.job for job_id, life in lives.items() if life.is_alive or life.is_silent}
    found |= in_queue(run.run_dir) or {}
    if hidden and not found:
        raise state.unknown(run.run_dir, hidden[0])
    return found


def in_queue(run_dir: RunDir) -> dict[str, Job] | None:
    """The user's queued and running jobs whose batch script gets this run directory.

    None where squeue does not answer. A plain `sbatch slurm/ddp.sbatch RUN_DIR` records its job
    only once it starts.
    """
    path, queue = run_dir.path.resolve(), job_list.queue()
    if queue.jobs is None:
        return None
    mine = (job_id for job_id in queue.targets if target_of(queue, job_id) == path)
    return {job_id: queue.jobs[job_id] for job_id in mine}


def target_of(queue: job_list.Queue, job_id: str) -> Path | None:
    """What a queued job's batch script gets; None where Slurm hides it and no run has the job."""
    target = queue.targets[job_id]
    if target is not None:
        return target
    recorded = lookup.recall(job_id)
    return None if recorded is None else recorded.path.resolve()
