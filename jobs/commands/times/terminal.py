"""Writes where the time of runs went as text, for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...console import format_duration, quantity
from ...rundir import RunDir
from ..views.left_out import left_out_of
from .charts import label
from .ranking import RankedValue
from .spans import START_UP, Use
from .summary import TimeSummary

FIRST_COLUMN = 18
START_UP_TITLE = "start-up"


def name_of(summary: TimeSummary) -> str:
    """Return name and id of a run; characters that no terminal shows are replaced."""
    run_dir = summary.run_dir
    return printable(f"{run_dir.path.parent.name} {run_dir.run_id}")


def printable(text: str) -> str:
    """Return the text with `?` for each unprintable character, such as those of a terminal."""
    return "".join(each if each.isprintable() else "?" for each in text)


def heading(summary: TimeSummary) -> str:
    """Return lines with what the run is, its times and hours, and the nodes that it leaves out."""
    redone = f", {quantity(summary.steps_redone, 'step')} redone" if summary.steps_redone else ""
    attempts = quantity(len(summary.history.attempts), "attempt")
    left_out = [f"left out: {each}" for each in left_out_of(summary.history.run.files)]
    lines = [f"{name_of(summary)}: {summary.state}, {attempts}{redone}", facts_of(summary)]
    return "\n  ".join([*lines, *map(printable, left_out)])


def facts_of(summary: TimeSummary) -> str:
    """Return wall time, hours and goodput of a run, in one line."""
    end = "its end" if summary.history.is_ended else "now"
    parts = [f"{duration(summary.wall)} from submit to {end}"]
    parts.append(f"{duration(summary.allocated)} allocated")
    parts.append(f"{summary.node_hours:.3g} node hours")
    saved = quantity(summary.saved_requeues, "requeue")
    if summary.spare_hours:
        parts.append(f"{summary.spare_hours:.3g} of them of spare nodes, which saved {saved}")
    elif summary.saved_requeues:
        parts.append(f"{saved} saved by fewer nodes")
    if summary.gpu_hours:
        parts.append(f"{summary.gpu_hours:.3g} GPU hours")
    if summary.goodput is not None:
        parts.append(f"goodput {summary.goodput:.1%}")
    return ", ".join(parts)


def duration(ms: int) -> str:
    """Return the milliseconds as `12.3 s`, or in the two largest units."""
    return f"{ms / 1000:.1f} s" if ms < 60_000 else format_duration(ms / 1000, 2)


Row = tuple[str, list[tuple[int, float]]]


def rows_of(summaries: Sequence[TimeSummary]) -> list[Row]:
    """Return (title, [(time in ms, share of the wall time) of each run]) of each use in any run.

    The start-up is one row with those of its phases below, which begin with a space.
    """
    rows: list[Row] = []
    for use in Use:
        title, uses = label(use), (use,)
        if use is START_UP[0]:
            rows.append((START_UP_TITLE, [cell(each, START_UP) for each in summaries]))
        indent = "  " if use in START_UP else ""
        rows.append((indent + title, [cell(each, uses) for each in summaries]))
    always = (label(Use.NOT_EXPLAINED),)
    return [row for row in rows if row[0] in always or any(time for time, _ in row[1])]


def cell(summary: TimeSummary, uses: tuple[Use, ...]) -> tuple[int, float]:
    """Return the time of the uses, and its share of the wall time."""
    return summary.time_of(*uses), summary.share_of(*uses)


def lines_of(summaries: Sequence[TimeSummary], width: int) -> list[str]:
    """Return the report as text lines; runs side by side, as many as fit `width` characters."""
    names = [name_of(each) for each in summaries]
    widths = [max(len(name), 22) for name in names]
    rows = rows_of(summaries)
    lines = [heading(each) for each in summaries]
    first = 0
    while first < len(names):
        last, used = first, FIRST_COLUMN
        while last < len(names) and (last == first or used + 2 + widths[last] <= width):
            used += 2 + widths[last]
            last += 1
        lines.append("")
        if len(names) > 1:
            shown = [f"  {names[n]:>{widths[n]}}" for n in range(first, last)]
            lines.append(" " * FIRST_COLUMN + "".join(shown))
        for title, cells in rows:
            texts = [f"{duration(time):>13} {share:>7.1%}" for time, share in cells[first:last]]
            padded = [f"  {text:>{widths[first + n]}}" for n, text in enumerate(texts)]
            lines.append(f"{title:<{FIRST_COLUMN}}" + "".join(padded))
        first = last
    return lines


def ranking_lines(
    ranked: Sequence[RankedValue], metric: str, mode: str, labels: Mapping[RunDir, str]
) -> list[str]:
    """Return the runs in order, with value and step; `labels`: for runs that differ in keys."""
    own = {r.run_dir: f"{r.run_dir.path.parent.name} {r.run_dir.run_id}" for r in ranked}
    names = [printable(labels.get(r.run_dir, own[r.run_dir])) for r in ranked]
    widest_name = max(map(len, names), default=0)
    values = ["-" if each.value is None else f"{each.value:.6g}" for each in ranked]
    widest = max(map(len, values), default=0)
    better = "largest" if mode == "max" else "smallest"
    lines = ["", f"{printable(metric)}, {better} first"]
    for place, (each, name, value) in enumerate(zip(ranked, names, values, strict=True), 1):
        step = "" if each.step is None else f"  step {each.step}"
        lines.append(f"{place:>4}  {value:>{widest}}  {name:<{widest_name}}{step}".rstrip())
    return lines
