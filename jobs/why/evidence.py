"""Reads what the run directory and Slurm have about a run; changes nothing.

Each file is read once. `ended` and `state` take the values. Every command of Slurm may be missing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_job_kit.jobs import records, shared_files
from slurm_job_kit.jobs.attempt import history
from slurm_job_kit.jobs.attempt.decision import LOST_REASON, Decision
from slurm_job_kit.jobs.errors import RUN_DIR_FAULTS, UserError
from slurm_job_kit.jobs.kinds import Kind
from slurm_job_kit.jobs.log_text import first_line
from slurm_job_kit.jobs.records import RecordError
from slurm_job_kit.jobs.records.ended import Action, AttemptRecord, Cause
from slurm_job_kit.jobs.records.frozen import Provenance
from slurm_job_kit.jobs.records.nodes import HangConclusion, RankError, RankHang
from slurm_job_kit.jobs.records.training import Event, read_events
from slurm_job_kit.jobs.rundir import AttemptDir, RunDir
from slurm_job_kit.jobs.runs import facts, interpret, scratch_purge
from slurm_job_kit.jobs.runs.interpret import AttemptFacts
from slurm_job_kit.jobs.runs.state import RunState
from slurm_job_kit.jobs.slurm import client, job_list, site
from slurm_job_kit.jobs.why import places
from slurm_job_kit.jobs.why.answer import FileLine
from slurm_job_kit.jobs.why.places import CodeFolders, LogLine

# Of these the files of ranks and agents show more than the record.
DETAILED = (Cause.CRASH, Cause.HANG, Cause.OUT_OF_MEMORY, Cause.NODE, Cause.LOST)
# Of older attempts only the records are read: a long run may have hundreds.
MAX_DETAILED = 50
LAST_LINES = 10
# A run directory that is full or gone: what libc calls these errors.
DISK_TEXTS: dict[str, Kind] = {
    os.strerror(number): RUN_DIR_FAULTS[number]
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENOENT, errno.EIO, errno.ESTALE)
}
_TIME = r"^(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d )?"
# An error of the batch script or of `attempt open`, not of a rank, of srun or of slurmstepd.
OWN_ERROR = re.compile(_TIME + r"error: (.+)")
# An error that ends a rank. Source: trainer.errors.report.
RANK_ERROR = re.compile(_TIME + r"trainer: (?:a rank|rank \d+) on \S+: error: ")


@dataclass(frozen=True)
class Quarantined:
    """A damaged checkpoint that was put aside, and why."""

    name: str
    reason: str
    place: FileLine


@dataclass(frozen=True)
class Ended:
    """An attempt that ended, and what its files show. None: there is no such file.

    agent_error: the file in which an agent wrote why it started no torchrun.
    found: only where the record alone does not show the cause.
    failed: the rank that failed first. failure: the user's line that raised its error, else the
    line of its log. disk: what a rank logged that could write no error record.
    hang_place: where the rank is for which the others wait.
    was_recorded: a `lost` attempt had been closed, so that its record was deleted since.
    end_state: Slurm's state of the job after its end, where the record does not decide.
    """

    record: AttemptRecord
    place: FileLine
    found: AttemptFacts | None = None
    agent_error: FileLine | None = None
    failed: RankError | None = None
    failure: FileLine | None = None
    disk: tuple[Kind, FileLine] | None = None
    hang: HangConclusion | None = None
    hang_place: FileLine | None = None
    was_recorded: bool = False
    end_state: str | None = None
    quarantined: tuple[Quarantined, ...] = ()


@dataclass(frozen=True)
class Observed:
    """All that is known about a run.

    ends: the attempts that ended, the oldest first, also one that has no record yet.
    missing: a file of the run that only the user can bring back.
    cancelled_by: the user's name, by Slurm's accounting.
    job: all that Slurm shows of it, for minutes also after its end. end_state: Slurm's, after it.
    exceeds_alone: the job waits for a limit that it exceeds without any other job.
    refusal: why the last job ended before it began an attempt.
    """

    run: RunState
    newest: AttemptFacts
    ends: tuple[Ended, ...]
    missing: UserError | None
    cancelled_by: str | None
    job: client.Job | None
    end_state: str | None
    exceeds_alone: bool
    last_event: Event | None
    refusal: LogLine | None
    last_lines: tuple[LogLine, ...]

    @property
    def run_dir(self) -> RunDir:
        return self.run.run_dir

    @property
    def job_id(self) -> str | None:
        return self.run.job_id


def read(run: RunState) -> Observed:
    """All that is known about a run. Raises: RecordError, OSError."""
    run_dir, job_id = run.run_dir, run.job_id
    newest = facts.read_newest(run_dir)  # after Slurm's answer: the attempt may have ended since
    attempts = list(newest.attempts)
    # The job or process that still runs records the attempt itself.
    if interpret.is_lost(newest) and run.is_ended:
        attempts.append(_lost_record(newest))
    ends = _ends(run_dir, newest, attempts)
    job_log = places.tail(run_dir.job_log)
    is_queued = run.job is not None and run.job.is_alive
    # All that Slurm shows, also of a job that ended minutes ago.
    named = next((job for job in run.files.jobs if job.job_id == job_id), None)
    job = run.job if named is None else job_list.life_of(named).job or run.job
    asks_state = run.is_ended and newest.result is None and job_id is not None
    end_state = _end_state(job_id, run.job) if asks_state and job_id is not None else None
    cancelled = newest.result is not None and newest.result.status == "cancelled"
    asks_who = run.files.mark is None and (cancelled or end_state == "CANCELLED")
    return Observed(
        run=run,
        newest=newest,
        ends=tuple(ends),
        missing=_missing(run_dir),
        cancelled_by=job_list.cancelled_by(job_id) if asks_who and job_id is not None else None,
        job=job,
        end_state=end_state,
        exceeds_alone=is_queued and job is not None and site.exceeds_alone(job),
        last_event=newest.events[-1] if newest.events else None,
        refusal=None if is_queued else _refusal(newest, job_log),
        last_lines=tuple((_log_of_last(run_dir, ends) or job_log)[-LAST_LINES:]),
    )


def _end_state(job_id: str, job: client.Job | None) -> str | None:
    """Slurm's state of a job that has ended; the accounting remembers it longer."""
    return job_list.end_state(job_id) if job is None else job.state


def _lost_record(found: AttemptFacts) -> AttemptRecord:
    """The record that the next start of the run would write about its newest attempt."""
    seen = interpret.rank_evidence(found, interpret.LOST)
    is_done = seen.outcome == "completed"
    decision = (
        Decision(Action.DONE, Cause.COMPLETED, "all steps are done")
        if is_done
        else Decision(Action.HOLD, Cause.LOST, LOST_REASON)
    )
    return history.record_of(found, seen, decision, 0.0)


def _ends(run_dir: RunDir, newest: AttemptFacts, attempts: Sequence[AttemptRecord]) -> list[Ended]:
    code = places.code_folders(run_dir, _repository(run_dir))
    closed = {
        event.attempt
        for event in read_events(run_dir.timeline("attempt"))
        if event.event == "close"
    }
    detailed = {record.attempt for record in attempts[-MAX_DETAILED:] if record.cause in DETAILED}
    found = []
    for record in attempts:
        if record.attempt in detailed:
            is_newest = record.attempt == newest.attempt
            each = newest if is_newest else facts.read(run_dir, record.attempt)
            ended = _with_details(run_dir, record, each, code, record.attempt in closed)
        else:
            ended = _plain(run_dir, record)
        found.append(ended)
    return found


def _plain(run_dir: RunDir, record: AttemptRecord) -> Ended:
    """An attempt whose record shows the cause, with Slurm's end state where it does not."""
    seen = record.evidence
    is_open = record.cause is Cause.CANCELLED and seen.is_preempted and record.job_id is not None
    state = None
    # Also where submit saw no such preemption: a plugin of slurmctld may choose the job's QOS.
    if is_open and record.job_id is not None:
        state = _end_state(record.job_id, client.show_job(record.job_id))
    return Ended(
        record,
        places.record_line(run_dir, record.attempt),
        end_state=state,
        quarantined=_quarantined(run_dir, record),
    )


def _with_details(
    run_dir: RunDir, record: AttemptRecord, found: AttemptFacts, code: CodeFolders, is_closed: bool
) -> Ended:
    attempt_dir = run_dir.attempt(record.attempt)
    failed = interpret.first_error(found.errors)
    hang, hang_place = _hang_of(attempt_dir, code)
    return Ended(
        record,
        places.record_line(run_dir, record.attempt),
        found,
        _agent_error(attempt_dir, found),
        failed,
        _place_in_job_log(run_dir, found)
        if failed is None
        else _place_of(attempt_dir, failed, code),
        _disk_of(run_dir, record.attempt) if failed is None else None,
        hang,
        hang_place,
        was_recorded=is_closed and record.cause is Cause.LOST,
        quarantined=_quarantined(run_dir, record),
    )


def _agent_error(attempt_dir: AttemptDir, found: AttemptFacts) -> FileLine | None:
    if found.agent_errors:
        return next(
            (
                FileLine(path, 1)
                for path in map(attempt_dir.agent_error, range(len(found.nodes)))
                if shared_files.exists(path) and path.stat().st_size
            ),
            None,
        )
    ranks = (
        rank
        for rank, agent in enumerate(found.agents)
        if agent is not None and agent.error is not None
    )
    rank = next(ranks, None)
    return None if rank is None else FileLine(attempt_dir.agent(rank))


def _place_of(attempt_dir: AttemptDir, failed: RankError, code: CodeFolders) -> FileLine:
    """Where the error was raised in the user's code, else the line of the rank's log."""
    if (frame := places.users_frame(failed.traceback, code)) is not None:
        return frame
    lines = places.tail(attempt_dir.rank_log(failed.rank))
    first = first_line(failed.error)
    if failed.exit_code is not None and not failed.traceback:  # behind `exited with code 3: `
        first = first.partition(": ")[2] or first
    return places.line_with(lines, first) or FileLine(attempt_dir.rank_error(failed.rank))


def _place_in_job_log(run_dir: RunDir, found: AttemptFacts) -> FileLine | None:
    """The line of the job's log about an agent that did not start."""
    words = dict(found.last_words).get("")
    return places.line_with(places.tail(run_dir.job_log), first_line(words)) if words else None


def _disk_of(run_dir: RunDir, attempt: int) -> tuple[Kind, FileLine] | None:
    """What a disk did to an attempt without an error record, by the logs of ranks and job."""
    for log in shared_files.files_in(run_dir.attempt(attempt).path, "rank-*.log"):
        if (found := places.disk_fault_in(places.tail(log), RANK_ERROR, DISK_TEXTS)) is not None:
            return found
    of_attempt = places.attempt_lines(places.tail(run_dir.job_log), attempt)
    about_the_run = [line for line in of_attempt if run_dir.run_id in line.text]
    return places.disk_fault_in(about_the_run, OWN_ERROR, DISK_TEXTS)


def _hang_of(
    attempt_dir: AttemptDir, code: CodeFolders
) -> tuple[HangConclusion | None, FileLine | None]:
    """The conclusion about a hang, and where the rank is for which the others wait."""
    try:
        hang = records.read(HangConclusion, attempt_dir.hang)
    except RecordError:  # empty: the rank that found the hang ended before its conclusion
        return None, FileLine(attempt_dir.hang)
    if hang is None:
        return None, None
    for rank in hang.waited_for:
        state = records.read(RankHang, attempt_dir.rank_hang(rank))
        if state is not None:
            path, _, line = state.where.partition(" ")[0].rpartition(":")
            file = places.users_file(Path(path), code) if path else None
            if file is not None and line.isdecimal():
                return hang, FileLine(file, int(line))
            return hang, FileLine(attempt_dir.rank_hang(rank))
    return hang, FileLine(attempt_dir.hang)


def _quarantined(run_dir: RunDir, record: AttemptRecord) -> tuple[Quarantined, ...]:
    found = []
    for name in record.quarantined:
        path = run_dir.checkpoints / name / "REASON"
        reason = next((line.text for line in places.tail(path)), "the reason is in rank 0's log")
        place = FileLine(path, 1 if shared_files.exists(path) else None)
        found.append(Quarantined(name, reason, place))
    return tuple(found)


def _repository(run_dir: RunDir) -> str | None:
    with contextlib.suppress(RecordError, OSError):
        provenance = records.read(Provenance, run_dir.provenance)
        return None if provenance is None else provenance.repository
    return None


def _missing(run_dir: RunDir) -> UserError | None:
    try:
        scratch_purge.check(run_dir)
    except UserError as error:
        return error
    return None


def _refusal(newest: AttemptFacts, job_log: Sequence[LogLine]) -> LogLine | None:
    """Why a job that a user queued after the newest attempt ended before an attempt of its own."""
    last = newest.last
    opened = None if newest.plan is None else newest.plan.job_id
    job_id = newest.submission.job_id
    # Of the same job, Slurm's further start after a hold is refused as it should be.
    if job_id is None or job_id in (opened, None if last is None else last.job_id):
        return None
    for line in reversed(job_log):
        if (error := OWN_ERROR.search(line.text)) is not None:
            return LogLine(error[1], line.place)
    return None


def _log_of_last(run_dir: RunDir, ends: Sequence[Ended]) -> list[LogLine]:
    """The end of the log of the rank that failed last."""
    last = ends[-1] if ends else None
    if last is None or last.record.cause not in DETAILED:
        return []
    rank = 0 if last.failed is None else last.failed.rank
    return places.tail(run_dir.attempt(last.record.attempt).rank_log(rank))
