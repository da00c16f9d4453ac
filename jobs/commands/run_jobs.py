"""The Slurm jobs of a run: those that its directory names, and those in the user's queue."""

from __future__ import annotations

from pathlib import Path

from slurm_job_kit.jobs.attempt import run_lock
from slurm_job_kit.jobs.rundir import RunDir
from slurm_job_kit.jobs.runs import lookup
from slurm_job_kit.jobs.slurm import client, job_list


def unended(run_dir: RunDir) -> list[str]:
    """The ids of the run's jobs that are queued or run, or of which Slurm gives no answer."""
    owner = run_lock.read(run_dir)
    recorded = [lookup.job_id_of(run_dir), lookup.waiting_job(run_dir)]
    recorded += [owner.job_id] if owner and not owner.is_local else []
    jobs = [job_id for job_id in dict.fromkeys(recorded) if job_id is not None]
    found = [job_id for job_id in jobs if client.is_alive(job_id) is not False]
    return list(dict.fromkeys([*found, *in_queue(run_dir)]))


def in_queue(run_dir: RunDir) -> list[str]:
    """The ids of the user's queued and running jobs whose batch script gets this run directory.

    A plain `sbatch slurm/ddp.sbatch RUN_DIR` records its job only once it starts.
    """
    path = run_dir.path.resolve()
    return [job.job_id for job in job_list.queued_jobs() if target_of(job) == path]


def target_of(job: job_list.QueuedJob) -> Path | None:
    """What a queued job's batch script gets; None for another script, and where Slurm hides it."""
    if not job.is_cut:
        return job.target
    recorded = lookup.recall(job.job_id)
    return None if recorded is None else recorded.path.resolve()
