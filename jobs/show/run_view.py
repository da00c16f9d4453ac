"""Reads what status and logs show of a run, each file once, and judges in which state it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from slurm_job_kit.jobs import records, shared_files
from slurm_job_kit.jobs.checkpoint_names import checkpoint_name, checkpoint_names
from slurm_job_kit.jobs.records import RecordError
from slurm_job_kit.jobs.records.ended import AttemptRecord, read_attempts
from slurm_job_kit.jobs.records.nodes import AttemptPlan
from slurm_job_kit.jobs.records.queued import RecordedJob, Successor
from slurm_job_kit.jobs.records.training import Progress, Result, SavedCheckpoint
from slurm_job_kit.jobs.rundir import RunDir
from slurm_job_kit.jobs.runs import facts, lookup, run_lock
from slurm_job_kit.jobs.show import live_progress
from slurm_job_kit.jobs.slurm import job_state
from slurm_job_kit.jobs.slurm.job_list import QueueEntry
from slurm_job_kit.jobs.spec import FormatError, Spec

# Of a run that nothing continues by itself; so is each ended state of Slurm.
ENDED = frozenset({"completed", "held", "cancelled", "frozen", "stopped", "lost", "unreadable"})


@dataclass(frozen=True)
class RunView:
    """What the files of a run show."""

    run_dir: RunDir
    spec: Spec  # the defaults where it cannot be read
    problem: str | None = None  # why this version of the kit does not read the files
    submitted: RecordedJob | None = None  # the job that was queued last; None for a local run
    successor: str | None = None  # the job that waits for the end of that one
    owner: run_lock.Owner | None = None
    result: Result | None = None
    is_resumed: bool = False  # a job was submitted after the result was written
    progress: Progress | None = None
    attempts: tuple[AttemptRecord, ...] = ()  # closed ones, oldest first
    newest: int = 0  # the number of the newest attempt that was opened; 0 before the first
    plan: AttemptPlan | None = None  # of the newest attempt; not read of a complete run
    checkpoint: str | None = None  # the newest one
    checkpoint_time: float | None = None  # when it was saved, by the file system's clock

    @property
    def job_id(self) -> str | None:
        """The id of the job that was queued last; None for a local run."""
        return None if self.submitted is None else self.submitted.job_id

    @property
    def jobs(self) -> list[RecordedJob]:
        """The jobs that Slurm must be asked about: none of a run that has ended for good."""
        if self.submitted is None or (self.result is not None and not self.is_resumed):
            return []
        after = self.successor
        waiting = [] if after is None else [replace(self.submitted, job_id=after)]
        return [self.submitted, *waiting]

    @property
    def last(self) -> AttemptRecord | None:
        """The record of the newest attempt that was closed; None before the first."""
        return self.attempts[-1] if self.attempts else None


def read(run_dir: RunDir) -> RunView:
    """What the files of a run show; with `problem` where they cannot be read."""
    spec = Spec()
    if not shared_files.is_dir(run_dir.path):  # a point of a sweep
        return RunView(run_dir, spec, f"{run_dir.path}: the run directory was deleted")
    try:
        spec = Spec.read(run_dir.spec)
    except FormatError as error:
        return RunView(run_dir, spec, str(error))
    except (OSError, ValueError, TypeError, KeyError):
        pass  # the other files show how the run ended
    try:
        with shared_files.one_look():
            return _read(run_dir, spec)
    except RecordError as error:  # one damaged run hides no other
        return RunView(run_dir, spec, str(error))


def _read(run_dir: RunDir, spec: Spec) -> RunView:
    """`read` of a run whose files this version reads. Raises: RecordError."""
    shared_files.names_in(run_dir.path)  # first: nothing is asked then about what is missing in it
    submitted = lookup.recorded_job(run_dir)
    job_id = None if submitted is None else submitted.job_id
    after = None if job_id is None else records.read(Successor, run_dir.successor)
    result = records.read(Result, run_dir.result)
    is_complete = result is not None and result.status == "completed"
    attempts = tuple(read_attempts(run_dir))
    newest = attempts[-1].attempt if attempts else 0
    if not is_complete:
        newest = max(newest, facts.newest_opened(run_dir))
    plan = run_dir.attempt(newest).plan if newest and not is_complete else None
    checkpoint, saved_at = _newest_checkpoint(run_dir, spec)
    return RunView(
        run_dir=run_dir,
        spec=spec,
        submitted=submitted,
        successor=after.job_id if after is not None and after.after == job_id else None,
        owner=None if is_complete else run_lock.read(run_dir),
        result=result,
        is_resumed=not is_complete and _is_newer(run_dir.submission, run_dir.result),
        progress=live_progress.read(run_dir),
        attempts=attempts,
        newest=newest,
        plan=None if plan is None else records.read(AttemptPlan, plan),
        checkpoint=checkpoint,
        checkpoint_time=saved_at,
    )


def _is_newer(path: Path, other: Path) -> bool:
    """Whether a file was written after another one; False where one of them is missing."""
    times = _time_of(path), _time_of(other)
    return times[0] is not None and times[1] is not None and times[0] > times[1]


def _time_of(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _newest_checkpoint(run_dir: RunDir, spec: Spec) -> tuple[str | None, float | None]:
    """The newest checkpoint and when it was saved.

    A user's script has one if its kit_stop.py reported it: to search for its files takes long.
    """
    if not spec.launch.is_trainer:
        saved = records.read_leniently(SavedCheckpoint, run_dir.saved)
        return (
            (None, None)
            if saved is None
            else (checkpoint_name(saved.step), _time_of(run_dir.saved))
        )
    try:
        names = checkpoint_names(run_dir.checkpoints)
    except OSError:
        names = []
    if not names:
        return None, None
    newest = run_dir.checkpoints / names[0]
    shared_files.ask_again(newest)
    return newest.name, _time_of(newest)


Jobs = Mapping[str, QueueEntry] | None  # Slurm's answer; None: it gave none


@dataclass(frozen=True)
class Standing:
    """In which state a run is, and the job that decides it."""

    state: str
    job_id: str | None = None
    successor: str | None = None  # queued behind that job
    job: QueueEntry | None = None

    @property
    def is_ended(self) -> bool:
        """Whether nothing continues the run by itself."""
        return self.state in ENDED or self.state.upper() in job_state.ENDED

    @property
    def is_waiting(self) -> bool:
        """Whether the job is queued, or held by Slurm, and has no nodes."""
        return self.job is not None and self.state.upper() in job_state.WAITING

    @property
    def is_over(self) -> bool:
        """Whether the run ended. A new one is `frozen` until it is queued or begins."""
        return self.is_ended and self.state != "frozen"


def judge(view: RunView, jobs: Jobs) -> Standing:
    """The state of a run, from its files and from Slurm's answer."""
    if view.problem is not None:
        return Standing("unreadable")
    known = jobs or {}
    job_id, successor = view.job_id, view.successor
    if successor is not None and not is_in_queue(known.get(successor)):
        successor = None
    if successor is not None and not is_in_queue(known.get(job_id or "")):
        job_id, successor = successor, None  # the first one has ended
    job = known.get(job_id or "")
    return Standing(_state_of(view, jobs, job), job_id, successor, job)


def _state_of(view: RunView, jobs: Jobs, job: QueueEntry | None) -> str:
    """The run's state: that of its result, else of its job, else of its owner."""
    result = view.result
    if result is not None and view.is_resumed and jobs is None:
        return "unknown"
    if result is not None and not (view.is_resumed and is_in_queue(job)):
        return result.status
    if job is not None:
        return job.state.lower()
    if view.owner is None:
        if view.jobs and jobs is None:
            return "unknown"
        return "stopped" if view.newest else "frozen"
    if view.owner.is_local:
        is_alive = run_lock.is_alive(view.owner)
    else:
        is_alive = None if jobs is None else is_in_queue(jobs.get(view.owner.job_id))
    return {True: "running", False: "lost", None: "unknown"}[is_alive]


def is_in_queue(job: QueueEntry | None) -> bool:
    """Whether a job is queued or runs."""
    return job is not None and job_state.is_alive(job.state)


def users_of(views: Iterable[RunView]) -> set[int]:
    """The uids whose jobs Slurm must be asked about."""
    return {job.uid for view in views for job in view.jobs if job.uid is not None}
