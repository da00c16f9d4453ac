"""Reads what the run directory and Slurm have about a run; changes nothing.

`answers` takes the values. Every command of Slurm may be missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...attempt import record_writer
from ...attempt.decision import CRASHES, budget_of, budget_used, decide_lost
from ...attempt.reasons import OWN_ERROR, code_of, reasons_of
from ...errors import UserError
from ...kinds import Kind
from ...log_text import first_line
from ...records.ended import AttemptRecord, Cause, NamedReason
from ...records.training import Event
from ...rundir import RunDir
from ...runs import fact_reader, interpret, places, scratch_purge
from ...runs.interpret import AttemptFacts
from ...runs.places import CodeFolders, FileLine, LogLine
from ...runs.state import RunState
from ...slurm import client, job_list
from .answer import Reason

LAST_LINES = 10


@dataclass(frozen=True)
class RecordedEnd:
    """An attempt that ended: its record, the place of that, and its reasons, the main one first."""

    record: AttemptRecord
    place: FileLine
    reasons: tuple[Reason, ...]


@dataclass(frozen=True)
class Observation:
    """All that is known about a run.

    ends: the attempts that ended, the oldest first, also one that has no record yet.
    missing: a file of the run that only the user can bring back.
    cancelled_by: the user's name, by Slurm's accounting.
    job: all that Slurm shows of it, for minutes also after its end. end_state: Slurm's, after it.
    refusal: why the last job ended before it began an attempt.
    """

    run: RunState
    newest: AttemptFacts
    ends: tuple[RecordedEnd, ...]
    missing: UserError | None
    cancelled_by: str | None
    job: client.Job | None
    end_state: str | None
    last_event: Event | None
    refusal: LogLine | None
    last_lines: tuple[LogLine, ...]

    @property
    def run_dir(self) -> RunDir:
        return self.run.run_dir

    @property
    def job_id(self) -> str | None:
        return self.run.job_id


def read(run: RunState) -> Observation:
    """Return all that is known about a run. Raises: RecordError, OSError."""
    run_dir, job_id = run.run_dir, run.job_id
    newest = fact_reader.read_newest(
        run_dir
    )  # after Slurm's answer: the attempt may have ended since
    attempts = list(newest.attempts)
    # The job or process that still runs records the attempt itself.
    if interpret.is_unrecorded(newest) and run.is_ended:
        attempts.append(_lost_record(run_dir, newest))
    code = code_of(run_dir)
    ends = [_recorded_end(run_dir, record, code) for record in attempts]
    job_log = places.tail(run_dir.job_log)
    is_queued = run.job is not None and run.job.is_alive
    # All that Slurm shows, also of a job that ended minutes ago.
    named = next((job for job in run.files.jobs if job.job_id == job_id), None)
    job = run.job if named is None else job_list.life_of(named).job or run.job
    asks_state = run.is_ended and newest.result is None and job_id is not None
    end_state = _end_state(job_id, run.job) if asks_state and job_id is not None else None
    cancelled = newest.result is not None and newest.result.status == "cancelled"
    asks_who = run.files.mark is None and (cancelled or end_state == "CANCELLED")
    return Observation(
        run=run,
        newest=newest,
        ends=tuple(ends),
        missing=_missing(run_dir),
        cancelled_by=job_list.cancelling_user(job_id) if asks_who and job_id is not None else None,
        job=job,
        end_state=end_state,
        last_event=newest.events[-1] if newest.events else None,
        refusal=None if is_queued else _refusal(newest, job_log),
        last_lines=tuple((_log_of_last(run_dir, newest, ends) or job_log)[-LAST_LINES:]),
    )


def _end_state(job_id: str, job: client.Job | None) -> str | None:
    """Return Slurm's state of a job that has ended; the accounting remembers it longer."""
    return job_list.end_state(job_id) if job is None else job.state


def _lost_record(run_dir: RunDir, found: AttemptFacts) -> AttemptRecord:
    """Return the record that the next start of the run would write about its newest attempt."""
    seen = interpret.lost_evidence(found)
    budgets = budget_used(found.attempts), budget_of(found.spec)
    decision = decide_lost(seen, *budgets, is_automatic=False)
    record = record_writer.record_of(found, seen, decision, 0.0)
    return replace(record, reasons=reasons_of(run_dir, found, record))


def _recorded_end(run_dir: RunDir, record: AttemptRecord, code: CodeFolders) -> RecordedEnd:
    """Return a record with the places that show its reasons, and Slurm's word on a cancel."""
    own, numbers = places.record_line(run_dir, record.attempt), (record.attempt,)
    found = []
    named = record.reasons
    if not named and record.cause is not Cause.COMPLETED:  # a damaged file hid them from its writer
        named = (NamedReason(Kind.UNKNOWN, record.reason),)
    for each in named:
        place = own if each.file is None else _place_of(Path(each.file), each, code)
        found.append(Reason(each.kind, each.text, place, numbers))
    seen = record.evidence
    is_open = record.cause is Cause.CANCELLED and seen.is_preempted and record.job_id is not None
    # Also where submit saw no such preemption: a plugin of slurmctld may choose the job's QOS.
    if found and is_open and record.job_id is not None:
        state = _end_state(record.job_id, client.show_job(record.job_id))
        if state == "PREEMPTED":
            text = "Slurm preempted the job and cancelled it"
            found[0] = replace(found[0], kind=Kind.PREEMPTION, text=text)
        elif state is not None:
            found[0] = replace(found[0], text="the job was cancelled")
    return RecordedEnd(record, own, tuple(found))


def _place_of(path: Path, reason: NamedReason, code: CodeFolders) -> FileLine:
    """Return the place of a reason: the user's own file, or the log line that has its words."""
    if reason.line is not None or path.suffix != ".log":
        return FileLine(places.users_file(path, code) or path, reason.line)
    words = first_line(reason.text)
    while words:
        if (line := places.line_with(places.tail(path), words)) is not None:
            return line
        words = words.partition(": ")[2]  # without the introduction, the rank, the exit code
    return FileLine(path)


def _missing(run_dir: RunDir) -> UserError | None:
    try:
        scratch_purge.check(run_dir)
    except UserError as error:
        return error
    return None


def _refusal(newest: AttemptFacts, job_log: Sequence[LogLine]) -> LogLine | None:
    """Return why a user's job, queued after the newest attempt, ended before its own attempt."""
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


def _log_of_last(
    run_dir: RunDir, newest: AttemptFacts, ends: Sequence[RecordedEnd]
) -> list[LogLine]:
    """Return the end of the log of the rank that failed last."""
    last = ends[-1].record if ends else None
    if last is None or last.cause not in (*CRASHES, Cause.NODE, Cause.LOST):
        return []
    failed = interpret.first_error(newest.errors) if newest.attempt == last.attempt else None
    rank = 0 if failed is None else failed.rank
    return places.tail(run_dir.attempt(last.attempt).rank_log(rank))
