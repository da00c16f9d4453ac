"""Decides which charts a report has, as values that `plots` draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .curves import CurvePoint, Curves, ThinnedCurve
from .spans import Use
from .summary import TimeSummary

# A user's objective may have hundreds of metrics; the page stays below 2 MB.
MAX_METRIC_CHARTS = 12
MAX_MARKS = 60
PREFIXES = ("train_", "eval_")
# Times are shown in the largest unit of which the longest one has at least two.
UNITS = ((3_600_000, "h"), (60_000, "min"), (1000, "s"))


@dataclass(frozen=True)
class Line:
    """A curve of the run with index `run`; that of a held-out metric is drawn with dots."""

    run: int
    points: Sequence[CurvePoint]
    is_held_out: bool = False


@dataclass(frozen=True)
class Chart:
    """Curves over the steps. marks: (run, step, attempt) where a later attempt began.

    is_amount: the axis begins at 0, and is never logarithmic.
    """

    title: str
    lines: Sequence[Line]
    marks: Sequence[tuple[int, int, int]] = ()
    note: str = ""
    is_amount: bool = True

    @property
    def is_logarithmic(self) -> bool:
        """Whether the values need a logarithmic scale: all are positive, and they differ much."""
        lows = [point.low for line in self.lines for point in line.points]
        highs = [point.high for line in self.lines for point in line.points]
        is_wide = bool(lows) and min(lows) > 0 and max(highs) > 50 * min(lows)
        return is_wide and not self.is_amount


@dataclass(frozen=True)
class Bars:
    """The time of each use, by run. rows: (use, [time of each run, in `unit`])."""

    title: str
    unit: str
    rows: Sequence[tuple[str, Sequence[float]]]


def charts_of(summaries: Sequence[TimeSummary], curves: Sequence[Curves]) -> list[Chart]:
    """Return the charts of runs over their steps; those without any value are left out."""
    marks = marks_of(summaries)
    names = metric_names(curves)
    shown = [name for name in names if name != "lr"][:MAX_METRIC_CHARTS]
    charts = [metric_chart(name, curves) for name in shown]
    charts.append(chart("throughput, samples/s", [each.throughput for each in curves]))
    if "lr" in names:
        charts.append(chart("learning rate", [c.metrics.get("lr", ThinnedCurve()) for c in curves]))
    charts.append(chart("memory of rank 0 (peak), MiB", [each.memory for each in curves]))
    return [replace(each, marks=marks) for each in charts if each.lines or each.note]


def metric_names(curves: Sequence[Curves]) -> list[str]:
    """Return the metrics of all runs without train_ and eval_: loss first, then as they appear."""
    names = dict.fromkeys(bare(name) for each in curves for name in each.metrics)
    return sorted(names, key=lambda name: name != "loss")


def bare(name: str) -> str:
    """Return the name of a metric without train_ or eval_."""
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    return name


def metric_chart(name: str, curves: Sequence[Curves]) -> Chart:
    """Return the chart of one metric: of the training and held-out, of all runs."""
    lines, lost = [], 0
    for run, each in enumerate(curves):
        for own, curve in each.metrics.items():
            if bare(own) == name:
                lost += curve.num_not_finite
                if points := curve.points():
                    lines.append(Line(run, points, own.startswith("eval_")))
    note = f"{lost} values are NaN or infinite" if lost else ""
    return Chart(name, lines, note=note, is_amount=False)


def chart(title: str, curves: Sequence[ThinnedCurve]) -> Chart:
    """Return a chart of one curve for each run."""
    points = [(run, curve.points()) for run, curve in enumerate(curves)]
    return Chart(title, [Line(run, own) for run, own in points if own])


def marks_of(summaries: Sequence[TimeSummary]) -> list[tuple[int, int, int]]:
    """Return where the attempts after the first began, as far as a chart can tell them apart."""
    marks = []
    for run, summary in enumerate(summaries):
        for attempt in summary.history.attempts[1:]:
            if attempt.begin_step is not None:
                marks.append((run, attempt.begin_step, attempt.number))
    return marks if len(marks) <= MAX_MARKS else marks[:: -(-len(marks) // MAX_MARKS)]


def time_bars(summaries: Sequence[TimeSummary]) -> Bars:
    """Return the time of each use that any of the runs has."""
    uses = [use for use in Use if any(each.time_of(use) for each in summaries)]
    longest = max((each.time_of(use) for each in summaries for use in uses), default=0)
    size, unit = next((u for u in UNITS if longest >= 2 * u[0]), UNITS[-1])
    rows = [(label(use), [each.time_of(use) / size for each in summaries]) for use in uses]
    return Bars(f"time by use, {unit}", unit, rows)


def label(use: Use) -> str:
    """Return the name of a use for people."""
    return use.value.replace("_", " ")
