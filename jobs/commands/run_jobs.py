"""The Slurm jobs of runs: those that their directories name, and those in the user's queue."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from ..console import print_line
from ..rundir import RunDir
from ..runs import lookup, state
from ..runs.state import RunState
from ..slurm import job_list
from ..slurm.client import Job


def live_jobs(runs: Sequence[RunState]) -> dict[RunDir, dict[str, Job | None]]:
    """Return the jobs of runs that are queued or run, or of which Slurm gives no answer.

    By run, then by id. Prints which runs have no jobs but those that Slurm may hide.
    Raises: UserError where no run has another job.
    """
    queued = in_queue([run.run_dir for run in runs]) or {} if runs else {}
    jobs_of: dict[RunDir, dict[str, Job | None]] = {}
    hidden = []
    for run in runs:
        living = (each for each in run.lives.items() if each[1].is_alive or each[1].is_silent)
        jobs = {job_id: life.job for job_id, life in living}
        jobs |= queued.get(run.run_dir, {})
        if jobs:
            jobs_of[run.run_dir] = jobs
        else:
            unknown = (life for life in run.lives.values() if life.is_alive is None)
            hidden += [state.unknown(run.run_dir, life) for life in unknown]
    if hidden and not jobs_of:
        raise hidden[0]
    for error in hidden:
        print_line(str(error))
    return jobs_of


def in_queue(run_dirs: Iterable[RunDir]) -> dict[RunDir, dict[str, Job]] | None:
    """Return the user's queued and running jobs whose batch script gets one of these runs.

    By run, then by id; None where squeue does not answer, which is asked once. A plain
    `sbatch slurm/ddp.sbatch RUN_DIR` records its job only once it starts.
    """
    queue, wanted = job_list.queue(), {run_dir.path.resolve(): run_dir for run_dir in run_dirs}
    if queue.jobs is None:
        return None
    jobs_of: dict[RunDir, dict[str, Job]] = {}
    for job_id in queue.targets:
        if (path := target_of(queue, job_id)) in wanted:
            jobs_of.setdefault(wanted[path], {})[job_id] = queue.jobs[job_id]
    return jobs_of


def target_of(queue: job_list.Queue, job_id: str) -> Path | None:
    """Return what a queued job's batch script gets; None: Slurm hides it and no run has the job."""
    target = queue.targets[job_id]
    if target is not None:
        return target
    recorded = lookup.recall(job_id)
    return None if recorded is None else recorded.path.resolve()
