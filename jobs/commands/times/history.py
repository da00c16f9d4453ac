"""Reads what a run directory has on the time of a run: a `RunHistory`, in milliseconds."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace

from ... import records, shared_files
from ...records.ended import FINAL, Action, AttemptRecord, read_attempts
from ...records.nodes import AttemptPlan, RankError
from ...records.training import Event, Result, read_events, read_progress_step
from ...rundir import STEPS_WRITER, RunDir
from ...runs import fact_reader
from ...runs.lookup import LOCAL
from ...runs.state import RunState
from ...spec import Spec


@dataclass(frozen=True)
class AttemptHistory:
    """One attempt: when it began and ended, and the events of its rank 0.

    stop: of its record; None while it has none. failed: when the first rank recorded an error.
    events: of the attempts' timeline, the first agent and rank 0, in the order of their times.
    reported: the last finished step, and when rank 0 reported it, of an attempt without a record.
    """

    number: int
    start: int
    nodes: tuple[str, ...]
    job_id: str
    stop: int | None = None
    record: AttemptRecord | None = None
    events: tuple[Event, ...] = ()
    failed: int | None = None
    reported: tuple[int, int] | None = None
    spares: tuple[str, ...] = ()

    @property
    def is_lost(self) -> bool:
        """Whether the batch script was killed: its record has the time of the next start."""
        return self.record is not None and self.first("close") is None

    @property
    def is_local(self) -> bool:
        """Whether it ran without Slurm: then no queue starts the next one."""
        return self.job_id.startswith(LOCAL)

    @property
    def last_written(self) -> int:
        """When the attempt last wrote something."""
        reported = [] if self.reported is None else [self.reported[0]]
        return max([self.start, *reported, *(milliseconds(event.t) for event in self.events)])

    @property
    def decision(self) -> Action | None:
        return None if self.record is None else self.record.decision

    def first(self, name: str) -> Event | None:
        """Return the first event of a name."""
        return next((event for event in self.events if event.event == name), None)

    @property
    def begin_step(self) -> int | None:
        """The step after which the attempt began; None where it began none."""
        loaded = self.first("loaded")
        if loaded is not None:
            return loaded.step
        first = None if self.record is None else self.record.first_step
        return None if first is None else first - 1

    @property
    def last_step(self) -> int | None:
        """The last step that the attempt finished; None where that is not known."""
        if self.record is not None:
            return self.record.last_step
        return None if self.reported is None else self.reported[1]


@dataclass(frozen=True)
class RunHistory:
    """What a run directory has on the time of a run. All times: milliseconds since the epoch.

    begin: the submit. end: of the last attempt; now, while the run may go on. submits: when a
    command queued it.
    """

    run: RunState
    begin: int
    end: int
    is_ended: bool
    submits: tuple[int, ...]
    attempts: tuple[AttemptHistory, ...]
    spec: Spec | None

    @property
    def run_dir(self) -> RunDir:
        return self.run.run_dir

    @property
    def result(self) -> Result | None:
        return self.run.result

    @property
    def is_trainer(self) -> bool:
        """Whether the ranks are the kit's trainer, and no script of the user."""
        return self.spec is None or self.spec.launch.is_trainer


def milliseconds(seconds: float) -> int:
    """Return a time as a whole number: sums of spans are exact."""
    return round(seconds * 1000)


def read(run: RunState, now: float | None = None) -> RunHistory:
    """Return the history of a run. `now`: seconds since the epoch, the present time by default.

    Raises: RecordError, OSError.
    """
    run_dir, spec = run.run_dir, None
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        spec = Spec.read(run_dir.spec)
    present = milliseconds(time.time() if now is None else now)
    submitted = read_events(run_dir.timeline("submit"))
    submits = tuple(milliseconds(each.t) for each in submitted if each.event == "submit")
    attempts = read_all(run_dir)
    times = [milliseconds(event.t) for event in submitted]
    begin = min([*times, *(attempt.start for attempt in attempts[:1])], default=present)
    ended = end_of(run, attempts, submits)
    end = max(begin, present if ended is None else ended)
    return RunHistory(run, begin, end, ended is not None, submits, attempts, spec)


def end_of(
    run: RunState, attempts: tuple[AttemptHistory, ...], submits: tuple[int, ...]
) -> int | None:
    """Return when a run ended; None while it may go on: it runs, waits, or was queued again."""
    last = attempts[-1] if attempts else None
    if last is not None and last.record is None:
        return last.last_written if run.is_ended else None
    is_over = last is not None and last.decision in FINAL
    is_queued_again = last is not None and any(each > (last.stop or 0) for each in submits)
    if last is not None and is_over and not is_queued_again:
        return last.stop
    if run.result is None or run.result.status == "held":  # of before the resume
        return None
    with contextlib.suppress(OSError):  # cancelled in the queue
        return milliseconds(run.run_dir.result.stat().st_mtime)
    return None


def read_all(run_dir: RunDir) -> tuple[AttemptHistory, ...]:
    """Return the attempts of a run, in their order, those without a record, too."""
    closed = {record.attempt: record for record in read_attempts(run_dir)}
    newest = max([fact_reader.newest_attempt(run_dir), *closed])
    events = events_by_attempt(run_dir)
    attempts = []
    for number in range(1, newest + 1):
        attempt = read_attempt(run_dir, number, closed.get(number))
        if attempt is not None:
            attempts.append(replace(attempt, events=tuple(events.get(number, ()))))
    if attempts and attempts[-1].record is None:
        attempts[-1] = replace(attempts[-1], reported=last_progress(run_dir))
    return tuple(attempts)


def read_attempt(
    run_dir: RunDir, number: int, record: AttemptRecord | None
) -> AttemptHistory | None:
    """Return an attempt without its events; None if neither plan nor record has a beginning."""
    plan = records.read_leniently(AttemptPlan, run_dir.attempt(number).plan)
    start = record.start if record is not None and record.start is not None else None
    if start is None and plan is not None:
        start = plan.start
    if start is None:
        return None
    nodes = (record.nodes if record is not None else None) or (plan.nodes if plan else ())
    job_id = (record.job_id if record is not None else None) or (plan.job_id if plan else "")
    stop = None if record is None else milliseconds(record.stop)
    spares = (record.spares if record is not None else None) or (plan.waiting if plan else ())
    return AttemptHistory(
        *(number, milliseconds(start), nodes, job_id, stop, record),
        failed=first_error(run_dir, number),
        spares=spares,
    )


def first_error(run_dir: RunDir, number: int) -> int | None:
    """Return when the first rank of an attempt recorded its error; None where none did."""
    paths = shared_files.files_in(run_dir.attempt(number).path, "rank-*.error.json")
    errors = [records.read_leniently(RankError, path) for path in paths]
    return min((milliseconds(error.time) for error in errors if error is not None), default=None)


def events_by_attempt(run_dir: RunDir) -> dict[int | None, list[Event]]:
    """Return the events of the attempts, of the first agent and of rank 0, sorted by time."""
    writers = ("attempt", "agent-00000", "rank-00000", STEPS_WRITER)
    events_of: dict[int | None, list[Event]] = {}
    events = [event for each in writers for event in read_events(run_dir.timeline(each))]
    for event in sorted(events, key=lambda event: event.t):
        events_of.setdefault(event.attempt, []).append(event)
    return events_of


def last_progress(run_dir: RunDir) -> tuple[int, int] | None:
    """Return when rank 0 last wrote progress.json, and the step in it; None where there is none."""
    with contextlib.suppress(OSError):
        step = read_progress_step(run_dir.progress)
        if step is not None:
            return milliseconds(run_dir.progress.stat().st_mtime), step
    return None
