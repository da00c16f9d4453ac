"""The Slurm jobs of runs: those that their directories name, and those in the user's queue."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from ..console import print_line
from ..errors import FailedError, UserError
from ..rundir import RunDir
from ..runs import lookup, state
from ..runs.state import RunState
from ..slurm import client, job_list
from ..slurm.client import Job


def live_jobs(runs: Sequence[RunState]) -> dict[RunDir, dict[str, Job | None]]:
    """Return the jobs of runs that are queued or run, or of which Slurm gives no answer.

    By run, then by id. Prints which runs have no jobs but those that Slurm may hide, and which jobs
    are no run's that names them. Raises: UserError where no run has another job; FailedError where
    none is known and Slurm does not answer.
    """
    queued = in_queue([run.run_dir for run in runs]) if runs else {}
    jobs_of: dict[RunDir, dict[str, Job | None]] = {}
    left: list[UserError | FailedError] = []
    for run in runs:
        of_run = (queued or {}).get(run.run_dir, {})
        jobs: dict[str, Job | None] = {}
        for job_id, life in run.lives.items():
            if not (life.is_alive or life.is_silent):
                continue
            if job_id in of_run or lookup.is_job_of(run.run_dir, job_id, life.job):
                jobs[job_id] = life.job
            elif life.is_alive:
                left.append(_foreign(run.run_dir, job_id, life.job))
        jobs |= of_run
        if jobs:
            jobs_of[run.run_dir] = jobs
        else:
            unknown = (life for life in run.lives.values() if life.is_alive is None)
            left += [state.unknown(run.run_dir, life) for life in unknown]
    if queued is None and not (jobs_of or left) and client.is_installed():
        raise silent(runs[0].run_dir)
    if left and not jobs_of:
        raise left[0]
    for error in left:
        print_line(str(error))
    return jobs_of


def silent(run_dir: RunDir) -> FailedError:
    """Return the error where it is unknown whether a job of plain sbatch waits for a run."""
    text = f"{run_dir.run_id}: squeue does not answer whether a job of it is queued already"
    return FailedError(f"{text}\n  hint: try again")


def _foreign(run_dir: RunDir, job_id: str, job: Job | None) -> UserError:
    """Return the error for a living job that a run names and that is not the run's."""
    where = f", which works in {job.work_dir}" if job is not None and job.work_dir else ""
    return UserError(
        f"{run_dir.run_id}: its files name job {job_id}{where}: it is not this run's and stays\n"
        f"  hint: squeue --me shows your jobs; scancel {job_id} if it is the run's all the same"
    )


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
    recorded, job = lookup.recall(job_id), (queue.jobs or {})[job_id]
    is_known = recorded is not None and lookup.is_job_of(recorded, job_id, job)
    return recorded.path.resolve() if recorded is not None and is_known else None
