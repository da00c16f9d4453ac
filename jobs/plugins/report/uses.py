"""Where the time of a run went: the seconds of each use, from attempts.jsonl and the timeline."""

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ...base import files
from ...base.console import printable
from ...base.errors import RecordError
from ...contract.records.ended import FINAL, Action, AttemptRecord
from ...contract.records.timeline import Event, read_events
from ...contract.rundir import RunDir
from ...runs.state import RunState

STOPS = ("stop_seen", "completed", "stopped")


class Use(StrEnum):
    """What time was used for. docs/report.md explains each use."""

    QUEUE = "queue"
    START_UP = "start_up"
    TRAINING = "training"
    REDONE = "redone"
    EVALUATION = "evaluation"
    CHECKPOINT = "checkpoint"
    STOPPING = "stopping"
    IDLE = "idle"


@dataclass(frozen=True)
class AttemptTimes:
    """One attempt. start, stop: seconds since the epoch; record: None while it has none."""

    number: int
    start: float
    stop: float
    nodes: tuple[str, ...]
    seconds: dict[Use, float]
    record: AttemptRecord | None

    def as_json(self) -> dict[str, Any]:
        """Return the attempt as `report --json` prints it."""
        record = self.record
        return {
            "attempt": self.number,
            "nodes": list(self.nodes),
            "start": self.start,
            "seconds": round(self.stop - self.start, 3),
            "job_id": record and record.job_id,
            "first_step": record and record.first_step,
            "last_step": record and record.last_step,
            "cause": record and record.cause,
            "decision": record and record.decision,
        }


@dataclass(frozen=True)
class RunTimes:
    """Where the time of a run went. begin: the submit; end: of the run, or now."""

    run: RunState
    begin: float
    end: float
    attempts: tuple[AttemptTimes, ...]
    seconds: dict[Use, float]
    steps_redone: int
    label: str | None = None  # what the run is called in its sweep

    @property
    def run_dir(self) -> RunDir:
        return self.run.run_dir

    @property
    def name(self) -> str:
        """The label, or name and id of the run, for a line and for the page."""
        return printable(self.label or f"{self.run_dir.path.parent.name} {self.run_dir.run_id}")

    def node_hours(self, *uses: Use) -> float:
        """Return the hours of all nodes with these uses; with all of them by default."""
        own = [(a, sum(a.seconds[use] for use in uses or Use)) for a in self.attempts]
        return sum(seconds * len({*attempt.nodes}) for attempt, seconds in own) / 3600

    @property
    def goodput(self) -> float | None:
        """The share of the node hours in which steps were done that count; None without nodes."""
        return self.node_hours(Use.TRAINING) / self.node_hours() if self.node_hours() else None

    @property
    def speed(self) -> Mapping[str, float] | None:
        """That of rank 0's newest log line."""
        now = self.run.files.progress
        return now.speed if now else None

    def as_json(self) -> dict[str, Any]:
        """Return the run as `report --json` prints it; times in seconds."""
        goodput = self.goodput
        return {
            "name": self.run_dir.path.parent.name,
            "run_id": self.run_dir.run_id,
            "run_dir": str(self.run_dir.path),
            "state": self.run.word,
            "begin": self.begin,
            "end": self.end,
            "wall_s": round(self.end - self.begin, 3),
            "seconds": {use.value: round(self.seconds[use], 3) for use in Use},
            "node_hours": round(self.node_hours(), 4),
            "gpu_hours": round(self.node_hours() * self.run.files.spec.slurm.num_gpus, 4),
            "goodput": None if goodput is None else round(goodput, 4),
            "speed": self.speed,
            "steps_redone": self.steps_redone,
            "attempts": [each.as_json() for each in self.attempts],
        }


def read(run: RunState, label: str | None) -> RunTimes:
    """Return where the time of a run went. Raises: RecordError, OSError."""
    run_dir, now = run.run_dir, time.time()
    submits = [each.t for each in read_events(run_dir.timeline("submit"))]
    writers = ("attempt", "rank-00000")
    events = [each for name in writers for each in read_events(run_dir.timeline(name))]
    attempts = [_closed(run, each, events) for each in run.files.attempts]
    number, plan = run.files.newest, run.files.plan
    if number > len(attempts) and plan is not None:  # it is open
        own = [each for each in events if each.attempt == number]
        stop = _last_sign(run, number, own, default=plan.start) if run.is_over else now
        start, stop = plan.start, max(plan.start, stop)
        of_open = _seconds(own, start, stop)
        attempts.append(AttemptTimes(number, start, stop, plan.nodes, of_open, None))
    begin = min([*submits, *(each.start for each in attempts)], default=now)
    end = max([begin, *(each.stop for each in attempts)])
    if not run.is_over:
        end = now
    elif not attempts:  # cancelled in the queue
        with contextlib.suppress(OSError):
            end = max(begin, run_dir.result.stat().st_mtime)
    seconds = _between(attempts, submits, begin, end)
    for use in Use:
        seconds[use] += sum(attempt.seconds[use] for attempt in attempts)
    redone = sum(_redone(each, run.files.attempts) for each in run.files.attempts)
    return RunTimes(run, begin, end, tuple(attempts), seconds, redone, label)


def _between(
    attempts: Sequence[AttemptTimes], submits: Sequence[float], begin: float, end: float
) -> dict[Use, float]:
    """Return the seconds in which the run had no attempt."""
    seconds, at, before = dict.fromkeys(Use, 0.0), begin, None
    for start, stop, record in [*((a.start, a.stop, a.record) for a in attempts), (end, end, None)]:
        start, use = max(at, start), Use.QUEUE
        if before is not None and before.decision is Action.RETRY:
            use = Use.START_UP
        elif before is not None and before.decision in FINAL:  # until a user resumed it
            again = max([each for each in submits if at <= each < start], default=start)
            seconds[Use.IDLE] += again - at
            at = again
        seconds[use] += start - at
        at, before = max(start, stop), record
    return seconds


def _closed(run: RunState, record: AttemptRecord, events: Sequence[Event]) -> AttemptTimes:
    own = [each for each in events if each.attempt == record.attempt]
    # Without the event the batch script was killed: its record has the time of the next start.
    stop = record.times.stop
    if not any(each.event == "close" for each in own):
        stop = min(_last_sign(run, record.attempt, own, default=stop), stop)
    start = min(stop, record.times.start or min((each.t for each in own), default=stop))
    seconds, steps = _seconds(own, start, stop), _steps(record)
    if steps:
        redone = seconds[Use.TRAINING] * _redone(record, run.files.attempts) / steps
        seconds |= {Use.REDONE: redone, Use.TRAINING: seconds[Use.TRAINING] - redone}
    return AttemptTimes(record.attempt, start, stop, record.nodes or (), seconds, record)


def _last_sign(run: RunState, number: int, own: Sequence[Event], default: float) -> float:
    """Return the time of the last event of an attempt, or of the last line in rank 0's log."""
    times = [each.t for each in own]
    log = run.run_dir.attempt(number).rank_log(0)
    # Opened: a network file system may remember that the log was not there.
    with contextlib.suppress(OSError, RecordError), files.open_binary(log) as file:
        times.append(os.fstat(file.fileno()).st_mtime)
    return max(times, default=default)


def _seconds(events: Sequence[Event], start: float, stop: float) -> dict[Use, float]:
    """Return the seconds of each use in an attempt, by the events of its rank 0."""
    begun = min([each.t for each in events if each.event == "first_step"], default=stop)
    ended = max(begun, min([each.t for each in events if each.event in STOPS], default=stop))
    seconds = dict.fromkeys(Use, 0.0)
    seconds |= {Use.START_UP: begun - start, Use.STOPPING: stop - ended}
    for each in events:
        if each.event == "evaluation" and begun <= each.t <= ended:
            seconds[Use.EVALUATION] += each.seconds or 0.0
        if each.event == "save" and begun <= each.t <= ended:
            seconds[Use.CHECKPOINT] += each.stall_s or 0.0
    seconds[Use.TRAINING] = max(0.0, stop - start - sum(seconds.values()))
    return seconds


def _steps(record: AttemptRecord) -> int:
    if record.first_step is None or record.last_step is None:
        return 0
    return record.last_step - record.first_step + 1


def _redone(record: AttemptRecord, records: Sequence[AttemptRecord]) -> int:
    """Return how many steps of an attempt later ones did again."""
    later = [e.first_step for e in records if e.attempt > record.attempt and e.first_step]
    again = min(later, default=None)
    if again is None or record.last_step is None:
        return 0
    return max(0, min(_steps(record), record.last_step - again + 1))
