"""Divides the time of a run into spans, each with what it was used for.

Pure functions of a `RunHistory`. The spans follow each other without a gap, from the submit to the
end of the run: their sum is the wall time to the millisecond. docs/report.md explains each use.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from statistics import median

from ...records.ended import Action, Cause
from ...records.training import Event
from .history import AttemptHistory, RunHistory, milliseconds

# Rank 0 reports its steps at least every 10 s, or with each log line: see PACE_APART_S.
SILENCE_S = 60.0
# Steps may be this many times slower than usual before the rest of their time is not explained.
SLOW_FACTOR = 5


class Use(StrEnum):
    """What a span of the time was used for, in the order in which it is shown."""

    SUBMIT = "submit"
    QUEUE = "queue"
    LAUNCH = "launch"
    IMPORT = "import"
    RENDEZVOUS = "rendezvous"
    INIT = "init"
    DATA = "data"
    MODEL = "model"
    COMPILE = "compile"
    RESTORE = "restore"
    FIRST_STEP = "first_step"
    TRAINING = "training"
    EVALUATION = "evaluation"
    CHECKPOINT = "checkpoint"
    RECOMPILE = "recompile"
    REDONE = "redone"
    HANG = "hang"
    STOPPING = "stopping"
    RESTART = "restart"
    IDLE = "idle"
    NOT_EXPLAINED = "not_explained"


START_UP = (
    *(Use.LAUNCH, Use.IMPORT, Use.RENDEZVOUS, Use.INIT),
    *(Use.DATA, Use.MODEL, Use.COMPILE, Use.RESTORE, Use.FIRST_STEP),
)
# What begins with an event.
BEGINS = {
    "torchrun": Use.IMPORT,
    "import": Use.RENDEZVOUS,
    "rendezvous": Use.INIT,
    "init": Use.DATA,
    "data": Use.MODEL,
    "model": Use.RESTORE,
    "loaded": Use.FIRST_STEP,
    "first_step": Use.TRAINING,
    "stop_seen": Use.STOPPING,
    "completed": Use.STOPPING,
    "stopped": Use.STOPPING,
    "torchrun_end": Use.STOPPING,
}


@dataclass(frozen=True)
class Span:
    """A part of the time, in milliseconds; the attempt that had its nodes, if there was one."""

    begin: int
    end: int
    use: Use
    attempt: int | None = None

    @property
    def length(self) -> int:
        return self.end - self.begin


Interval = tuple[int, int]


def spans_of(history: RunHistory) -> list[Span]:
    """Return the time of a run from its submit to its end, without a gap and without an overlap."""
    spans: list[Span] = []
    at, before = history.begin, None
    for index, attempt in enumerate(history.attempts):
        after = next(iter(history.attempts[index + 1 :]), None)
        start = min(max(at, attempt.start), history.end)
        spans += waiting(history, before, at, start)
        limit = history.end if after is None else max(start, min(after.start, history.end))
        at = min(max(start, end_of(attempt, limit)), limit)
        spans += attempt_spans(history, attempt, start, at)
        before = attempt
    spans += waiting(history, before, at, history.end)
    return [span for span in spans if span.length > 0]


def end_of(attempt: AttemptHistory, limit: int) -> int:
    """Return when an attempt ended; for a lost one, when it last wrote. `limit`: at the latest."""
    if attempt.stop is not None and not attempt.is_lost:
        return attempt.stop
    if attempt.record is None:  # it may still be running
        return limit
    points = points_of(attempt)
    steps = [] if attempt.last_step is None else [time_of(attempt.last_step, points)]
    return max([attempt.last_written, *(step for step in steps if step is not None)])


def waiting(history: RunHistory, before: AttemptHistory | None, begin: int, end: int) -> list[Span]:
    """Return the time between two attempts, or before the first and after the last one."""
    submits = [each for each in history.submits if begin <= each < end]
    submitted = submits[-1] if submits else end
    if before is None:
        return [Span(begin, submitted, Use.SUBMIT), Span(submitted, end, Use.QUEUE)]
    if before.decision is Action.RETRY and not before.is_lost:
        return [Span(begin, end, Use.RESTART, before.number)]
    if submits or before.is_local or before.decision in (Action.HOLD, Action.CANCEL, Action.DONE):
        return [Span(begin, submitted, Use.IDLE), Span(submitted, end, Use.QUEUE)]
    return [Span(begin, end, Use.QUEUE)]


def attempt_spans(history: RunHistory, attempt: AttemptHistory, begin: int, end: int) -> list[Span]:
    """Return the time of one attempt."""
    spans = phases(attempt, begin, end, history.is_trainer)
    points = [point for point in points_of(attempt) if begin <= point.t <= end]
    training_end = max((span.end for span in spans if span.use is Use.TRAINING), default=end)
    compilations = list(event_intervals(attempt, "compile"))
    spans = overlay(spans, Use.COMPILE, compilations, over=(Use.MODEL, Use.FIRST_STEP))
    # For an evaluation and for other shapes; before the evaluations, in which some of them lie.
    spans = overlay(spans, Use.RECOMPILE, compilations)
    spans = overlay(spans, Use.EVALUATION, event_intervals(attempt, "evaluation"))
    spans = overlay(spans, Use.CHECKPOINT, stalls(attempt))
    if attempt.record is not None and attempt.record.cause is Cause.HANG:
        hang_begin = time_of(attempt.last_step or 0, points)
        spans = overlay(
            spans, Use.HANG, [(begin if hang_begin is None else hang_begin, training_end)]
        )
    spans = overlay(spans, Use.NOT_EXPLAINED, silences(points, attempt.last_step, training_end))
    repeated_after = redone_after(history, attempt)
    if repeated_after is not None and (since := time_of(repeated_after, points)) is not None:
        spans = overlay(spans, Use.REDONE, [(since, training_end)])
    return spans


def phases(attempt: AttemptHistory, begin: int, end: int, is_trainer: bool) -> list[Span]:
    """Return an attempt's time by events alone; each event ends one phase and begins the next."""
    uses = dict(BEGINS)
    has_first_step = attempt.first("first_step") is not None
    if not is_trainer:  # nothing is known of a script until it reports a step
        uses["spawn"] = Use.FIRST_STEP if has_first_step else Use.TRAINING
    marks = [
        (milliseconds(each.t), uses[each.event]) for each in attempt.events if each.event in uses
    ]
    if attempt.failed is not None:
        marks.append((attempt.failed, Use.STOPPING))
    marks.sort(key=lambda mark: mark[0])
    did_steps = attempt.record is not None and attempt.last_step is not None and not has_first_step
    first = Use.NOT_EXPLAINED if did_steps and is_trainer else Use.LAUNCH
    spans, at, use = [], begin, first
    for t, following in marks:
        cut = min(max(at, t), end)
        spans.append(Span(at, cut, use, attempt.number))
        is_over = use is Use.STOPPING  # the last events of the agents come after those of the ranks
        at, use = cut, use if is_over or first is Use.NOT_EXPLAINED else following
    spans.append(Span(at, end, use, attempt.number))
    return [span for span in spans if span.length > 0]


def overlay(
    spans: Sequence[Span],
    use: Use,
    intervals: Iterable[Interval],
    over: Sequence[Use] = (Use.TRAINING,),
) -> list[Span]:
    """Return the spans; their parts in the intervals with a use of `over` have the new use."""
    cuts = merge(intervals)
    begins = [begin for begin, _ in cuts]
    result: list[Span] = []
    for span in spans:
        at = span.begin
        if span.use in over:
            for begin, end in cuts[max(0, bisect_left(begins, span.begin) - 1) :]:
                if begin >= span.end:
                    break
                begin, end = max(begin, at), min(end, span.end)
                if begin < end:
                    result += [
                        replace(span, begin=at, end=begin),
                        Span(begin, end, use, span.attempt),
                    ]
                    at = end
        result.append(replace(span, begin=at))
    return [span for span in result if span.length > 0]


def merge(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the intervals in their order; those that overlap are joined."""
    joined: list[Interval] = []
    for begin, end in sorted(intervals):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        elif begin < end:
            joined.append((begin, end))
    return joined


def event_intervals(attempt: AttemptHistory, name: str) -> Iterator[Interval]:
    """Yield the times that the attempt's events of this name lasted; an event comes at the end."""
    for event in attempt.events:
        if event.event == name and event.seconds is not None:
            yield milliseconds(event.t - event.seconds), milliseconds(event.t)


def stalls(attempt: AttemptHistory) -> Iterator[Interval]:
    """Yield when the training waited for a save, and the whole save that was its last act.

    An event `save` comes with the first step after the commit: the begin of the stall is known to a
    step or so, its length exactly.
    """
    completed = attempt.first("completed")
    for event in attempt.events:
        if event.event == "save" and event.seconds is not None:
            begin = milliseconds(event.t - event.seconds)
            is_last = completed is not None and event.step == completed.step
            seconds = event.seconds if is_last else event.stall_s or 0.0
            yield begin, begin + milliseconds(seconds)


@dataclass(frozen=True)
class PacePoint:
    """At time `t` (ms) the step `step` was finished."""

    t: int
    step: int


def points_of(attempt: AttemptHistory) -> list[PacePoint]:
    """Return the times at which the number of finished steps is known, in their order."""
    points: list[PacePoint] = []
    for event in attempt.events:
        points += points_in(event)
    if attempt.reported is not None:
        points.append(PacePoint(*attempt.reported))
    points.sort(key=lambda point: point.t)
    begun = attempt.first("first_step")
    begin, kept = 0 if begun is None else milliseconds(begun.t), list[PacePoint]()
    for point in points:  # the step never goes back, but clocks of hosts may
        if point.t >= begin and (not kept or point.step >= kept[-1].step):
            kept.append(point)
    return kept


def points_in(event: Event) -> list[PacePoint]:
    """Return what an event shows of the finished steps."""
    if event.step is None or event.event not in ("first_step", "steps", "evaluation", "stop_seen"):
        return []
    end = PacePoint(milliseconds(event.t), event.step)
    if event.event == "evaluation":
        return [PacePoint(milliseconds(event.t - (event.seconds or 0.0)), event.step), end]
    return [end]


def paces(points: Sequence[PacePoint]) -> list[float]:
    """Return the milliseconds of a step, between each two points with steps between them."""
    pairs = [(a, b) for a, b in pairwise(points) if b.step > a.step]
    return [(b.t - a.t) / (b.step - a.step) for a, b in pairs]


def time_of(step: int, points: Sequence[PacePoint]) -> int | None:
    """Return when a step finished, between two points or after the last; None without points."""
    if not points:
        return None
    index = bisect_left(points, step, key=lambda point: point.step)
    if index == 0:
        return points[0].t
    before = points[index - 1]
    if index < len(points):
        after = points[index]
        share = (step - before.step) / (after.step - before.step)
        return round(before.t + share * (after.t - before.t))
    known = paces(points)
    return round(points[-1].t + (step - before.step) * (known[-1] if known else 0.0))


def silences(points: Sequence[PacePoint], last_step: int | None, end: int) -> list[Interval]:
    """Return the times in which rank 0 finished no step for longer than its steps can explain.

    last_step: the last finished one; end: of the training.
    """
    known = paces(points)
    usual = median(known) if known else 0.0
    intervals = []
    last = [PacePoint(end, max(points[-1].step, last_step or 0))] if points else []
    for before, after in pairwise([*points, *last]):
        steps = max(1, after.step - before.step)
        explained = before.t + round(SLOW_FACTOR * usual * steps)
        if after.t > explained + milliseconds(SILENCE_S):
            intervals.append((explained, after.t))
    return intervals


def redone_after(history: RunHistory, attempt: AttemptHistory) -> int | None:
    """Return the step after which later attempts repeated this one's steps; None if none did."""
    later = [each.begin_step for each in history.attempts if each.number > attempt.number]
    begins = [step for step in later if step is not None]
    if not begins or attempt.last_step is None or min(begins) >= attempt.last_step:
        return None
    return min(begins)
