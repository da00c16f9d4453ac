"""In which state a run is, from its files and one answer of Slurm. Reads only.

Nothing else decides in which state a run is: every command takes a `RunState`. What a command then
does to a run happens under the run's claim, after it has asked again; the claim itself asks about
its present owner alone.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from ..base import files
from ..base.errors import FailedError, UserError
from ..contract import records
from ..contract.records import RecordError
from ..contract.records.ended import ENDS, Action
from ..contract.records.queued import Claim, RecordedJob, Submission, Successor
from ..contract.records.training import Result
from ..contract.rundir import RunDir
from ..slurm import job_list, job_state
from ..slurm.job import Job
from ..slurm.job_list import Liveness
from . import fact_reader, run_lock
from .evidence import is_training_complete
from .facts import RunFacts
from .results import result_of


class RunPhase(StrEnum):
    """What a run does, or how it stopped doing it."""

    FROZEN = "frozen"  # never queued, never begun
    WAITING = "waiting"  # its job is queued, or held by Slurm
    RUNNING = "running"
    ENDING = "ending"  # its job still has processes, and starts no attempt
    COMPLETED = "completed"
    HELD = "held"
    CANCELLED = "cancelled"
    STOPPED = "stopped"  # on this machine, or its job is gone; a record has its last end
    LOST = "lost"  # its process or job is gone without a record
    UNKNOWN = "unknown"  # neither Slurm nor this host knows whether it still runs
    UNREADABLE = "unreadable"
    GONE = "gone"  # its run directory was deleted


@dataclass(frozen=True, kw_only=True)
class RunFiles(RunFacts):
    """What the files of a run show, where they can be read, and who may write them."""

    run_dir: RunDir
    problem: str | None = None  # why this version of the kit does not read the files
    is_gone: bool = False  # there is no such directory
    owner: run_lock.Owner | None = None
    is_resumed: bool = False  # a job was submitted after the result was written
    checkpoint_time: float | None = None  # when it was saved, by the file system's clock

    @property
    def submitted(self) -> RecordedJob | None:
        """The job that was queued last; None for a local run."""
        last = self.submission
        return None if last.job_id is None else RecordedJob(last.job_id, last.uid, last.cluster)

    @property
    def next_job_id(self) -> str | None:
        """The id of the job that waits for the end of that one, or of the owner."""
        after, owner_id = self.successor, None if self.owner is None else self.owner.job_id
        return after.job_id if after and after.after in (self.job_id, owner_id) else None

    @property
    def job_id(self) -> str | None:
        """The id of the job that was queued last; None for a local run."""
        return self.submission.job_id

    @property
    def jobs(self) -> list[RecordedJob]:
        """The jobs that the files name: the one that was queued last, its successor, the owner."""
        known = [] if self.submitted is None else [self.submitted]
        owner = self.owner
        if owner is not None and not owner.is_local and owner.job_id != self.job_id:
            known.append(owner.job)
        after = self.next_job_id
        if after is not None and after not in [job.job_id for job in known]:
            known[1:1] = [replace(known[0], job_id=after)]
        return known

    @property
    def has_final_result(self) -> bool:
        """Whether the run has a result, and no job was submitted since."""
        return self.result is not None and not self.is_resumed

    @property
    def has_recorded_end(self) -> bool:
        """Whether the files have the end of the run with the job that was queued last."""
        if self.owner is not None or self.job_id is None:
            return False
        is_marked = self.mark is not None and self.job_id in self.mark.split()
        return is_marked or self.is_end_recorded


@dataclass(frozen=True)
class RunState:
    """A run at one time: its files, what Slurm and this host answer, and what follows from both.

    word: the state in one word, as `status --json` has it: of a job that lives, Slurm's.
    job_id: of the job that decides it: the successor, where the first one has ended.
    life: of that job, or of the process that runs the run here; None where there is neither.
    lives: of all jobs that the run names. process: the owner without Slurm that may still live.
    result: of the file, or what the next start of a job writes into it.
    """

    files: RunFiles
    phase: RunPhase
    word: str
    job_id: str | None = None
    successor: str | None = None  # queued behind that job
    life: Liveness | None = None
    result: Result | None = None
    lives: Mapping[str, Liveness] = field(default_factory=dict)
    process: run_lock.Owner | None = None

    @property
    def run_dir(self) -> RunDir:
        return self.files.run_dir

    @property
    def job(self) -> Job | None:
        """What Slurm shows of the job that decides the state."""
        return None if self.life is None else self.life.job

    @property
    def is_ended(self) -> bool:
        """Whether nothing continues the run by itself."""
        living = (RunPhase.WAITING, RunPhase.RUNNING, RunPhase.ENDING)
        return self.phase not in (*living, RunPhase.UNKNOWN)

    @property
    def is_over(self) -> bool:
        """Whether the run ended. A new one is `frozen` until it is queued or begins."""
        return self.is_ended and self.phase is not RunPhase.FROZEN

    @property
    def is_waiting(self) -> bool:
        """Whether the job is queued, or held by Slurm, and has no nodes."""
        return self.phase is RunPhase.WAITING and self.job is not None

    @property
    def is_ending(self) -> bool:
        """Whether the job has ended the run already, and only its batch script still lives."""
        last, is_alive = self.files.last, self.life is not None and self.life.is_alive is True
        is_its = last is not None and last.job_id == self.job_id and last.decision in ENDS
        return is_alive and is_its and self.files.is_closed

    def refuse_unknown(self) -> None:
        """Raises: UserError, FailedError where it is unknown whether the run still runs."""
        if self.life is not None and self.life.is_alive is None:
            raise unknown(self.run_dir, self.life)


def unknown(run_dir: RunDir, life: Liveness) -> UserError | FailedError:
    """Return the error of a command that would do harm if the run's job or process still lived."""
    text = f"{run_dir.run_id}: {life.why}\n  hint: {life.hint}"
    return FailedError(text) if life.is_silent else UserError(text)


def read_files(run_dir: RunDir) -> RunFiles:
    """Return what the files of a run show; with `problem` where they cannot be read."""
    if not files.is_dir(run_dir.path):  # a point of a sweep
        gone = f"{run_dir.path}: the run directory was deleted"
        return RunFiles(run_dir=run_dir, problem=gone, is_gone=True)
    try:
        with files.one_look():
            return _read(run_dir)
    except UserError as error:
        return _unreadable(run_dir, str(error))
    except OSError as error:
        return _unreadable(run_dir, f"{error.filename or run_dir.path}: {error.strerror}")


def _unreadable(run_dir: RunDir, problem: str) -> RunFiles:
    """Return a run that this kit does not read, with the jobs and owner that may live anyway."""

    def readable(kind: type[records.Record], path: Path) -> records.Record | None:
        with contextlib.suppress(RecordError, OSError):
            return records.read(kind, path)
        return None

    return RunFiles(
        run_dir=run_dir,
        problem=problem,
        submission=readable(Submission, run_dir.submission) or Submission(),
        owner=readable(Claim, run_dir.owner),
        successor=readable(Successor, run_dir.successor),
    )


def _read(run_dir: RunDir) -> RunFiles:
    """Return `read_files` of a run whose files can be read. Raises: UserError, OSError."""
    facts = fact_reader.read_run(run_dir)
    # Without spec.json the other files show how the run ended.
    if facts.spec_error is not None and run_dir.spec.name in files.names_in(run_dir.path):
        raise facts.spec_error
    is_complete = facts.result is not None and facts.result.status == "completed"
    submitted = _time_of(run_dir.submission) or 0.0
    return RunFiles(
        **vars(facts),
        run_dir=run_dir,
        owner=run_lock.read(run_dir),
        is_resumed=not is_complete and submitted > (_time_of(run_dir.result) or math.inf),
        checkpoint_time=time_of_checkpoint(run_dir, facts),
    )


def _time_of(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def time_of_checkpoint(run_dir: RunDir, facts: RunFacts) -> float | None:
    """Return when the newest checkpoint was saved: that of a user's script, when it reported it."""
    if facts.saved.checkpoint is None:
        return None
    if not facts.spec.launch.is_trainer:
        return _time_of(run_dir.saved)
    newest = run_dir.checkpoints / facts.saved.checkpoint
    files.ask_again(newest)
    return _time_of(newest)


Ask = Callable[[Sequence[RecordedJob]], Mapping[str, Liveness]]  # as job_list.ask


def read(run_dir: RunDir, ask: Ask = job_list.ask, is_for_change: bool = False) -> RunState:
    """Return `read_all` of one run."""
    return read_all([run_dir], ask, is_for_change)[0]


def read_all(
    run_dirs: Iterable[RunDir], ask: Ask = job_list.ask, is_for_change: bool = False
) -> list[RunState]:
    """Return the states of runs; one that cannot be read is `unreadable`.

    Slurm is asked once, if one of them has a job that may live. is_for_change: also about the jobs
    of runs that have a result, for a command that would do harm to one that still writes.
    """
    seen = [read_files(run_dir) for run_dir in run_dirs]
    jobs = [job for each in seen if is_for_change or not each.has_final_result for job in each.jobs]
    lives = ask(jobs) if jobs else {}
    return [judge(each, lives) for each in seen]


def judge(seen: RunFiles, lives: Mapping[str, Liveness]) -> RunState:
    """Return the state of a run, from its files and what is known of its jobs."""
    lives = {job.job_id: lives[job.job_id] for job in seen.jobs if job.job_id in lives}
    if seen.has_recorded_end:  # Slurm may hide a job, or give no answer about it
        known = (each for each in lives if lives[each].is_alive is not None)
        lives = dict.fromkeys(lives, Liveness(False)) | {each: lives[each] for each in known}
    job_id, successor = seen.job_id, seen.next_job_id
    if successor is not None and not _may_live(lives.get(successor)):
        successor = None
    if successor is not None and not _may_live(lives.get(job_id or "")):
        job_id, successor = successor, None  # the first one has ended
    life, here, process = lives.get(job_id or ""), seen.owner, None
    of_owner = None if here is None else lives.get(here.job_id)
    if here is not None and not here.is_local:
        here = None
    if here is not None:
        of_owner = run_lock.life_of(here)
    # Slurm may not tell whether an earlier job has ended; the process that lives here is known.
    is_known = here is not None and of_owner is not None and of_owner.is_alive
    if of_owner is not None and (is_known or not _may_live(life)):
        # A process that has died says nothing about a job that was queued later.
        if of_owner.is_alive is not False:
            life, process = of_owner, here
        life = life or of_owner
    phase, word = _phase_of(seen, life)
    run = RunState(seen, phase, word, job_id, successor, life, seen.result, lives, process)
    may_have_result = run.is_over or (phase is RunPhase.FROZEN and seen.mark is not None)
    if seen.result is not None or seen.problem is not None or not may_have_result:
        return run
    # One damaged run hides no other.
    with contextlib.suppress(UserError, FailedError, OSError):
        return _with_result(run)
    return run


def _may_live(life: Liveness | None) -> bool:
    return life is not None and life.is_alive is not False and not life.is_silent


def _phase_of(seen: RunFiles, life: Liveness | None) -> tuple[RunPhase, str]:
    """Return the phase and its word: of the result, else of the job, else of the owner."""
    if seen.problem is not None:
        return RunPhase.GONE if seen.is_gone else RunPhase.UNREADABLE, "unreadable"
    result, is_silent = seen.result, life is not None and life.is_silent
    may_go_on = seen.is_resumed and (_may_live(life) or is_silent)
    if result is not None and not may_go_on:
        return RunPhase(result.status), result.status
    if life is not None and life.is_alive is None:
        return RunPhase.UNKNOWN, "unknown"
    if life is not None and life.job is not None:
        state = life.job.state
        phases = {
            RunPhase.WAITING: job_state.WAITING,
            RunPhase.RUNNING: job_state.ON_NODES,
            RunPhase.ENDING: job_state.ENDING,
            RunPhase.CANCELLED: {"CANCELLED"},
            RunPhase.STOPPED if seen.is_closed else RunPhase.LOST: job_state.ENDED,
        }
        found = (each for each in phases if state in phases[each])
        return next(found, RunPhase.UNKNOWN), state.lower()
    if life is not None and life.is_alive:
        return RunPhase.RUNNING, "running"
    if seen.owner is not None:
        return RunPhase.LOST, "lost"
    if seen.newest:
        return RunPhase.STOPPED, "stopped"
    return RunPhase.FROZEN, "frozen"


def _with_result(run: RunState) -> RunState:
    """Return the state of a run that ended without result.json: complete, held or cancelled.

    Its batch script was killed before it wrote the file, or the cancel came after its end.
    """
    newest = fact_reader.read_newest(run.run_dir)
    if newest.result is not None:  # written since
        result = newest.result
    elif is_training_complete(newest):
        result = result_of(newest, Action.DONE, "all steps are done")
    elif run.files.mark is not None:
        result = result_of(newest, Action.CANCEL, "the job was cancelled")
    elif newest.last is not None and newest.is_closed and newest.last.decision in ENDS:
        result = result_of(newest, newest.last.decision, newest.last.reason)
    else:
        return run
    return replace(run, phase=RunPhase(result.status), word=result.status, result=result)
