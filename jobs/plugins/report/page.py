"""Writes the report as one HTML page without any external resource: a jinja2 template with SVG."""

import datetime
import io
import os
from collections.abc import Sequence
from pathlib import Path

import jinja2

os.environ["MPLBACKEND"] = "svg"  # that of the shell may be unknown here: the import would fail
import matplotlib
from matplotlib.figure import Figure

from ...base import files, installation
from ...base.console import LAYOUT, printable
from ...contract import records
from ...contract.records.frozen import Overrides
from ...contract.rundir import RunDir
from .ranking import NO_METRICS, bare, is_number, read_metrics
from .uses import RunTimes

matplotlib.rcdefaults()  # not what a matplotlibrc of the working directory says: it may run latex
MAX_CHARTS = 12
MAX_POINTS = 400  # of one curve: a chart is 400 pixels wide
RULES = 20  # a value this many times the lower quartile leaves no room for the others
COLOURS = ("#0b62c4", "#c2410c", "#15803d", "#9333ea", "#b45309", "#0e7490", "#be185d", "#4d7c0f")
# The points of each curve of a chart, by the number of its run and whether it is held out.
Chart = dict[tuple[int, bool], list[tuple[float, float]]]


def page_of(
    times: Sequence[RunTimes], headings: Sequence[str], table: Sequence[str], ranking: Sequence[str]
) -> str:
    """Return the page. headings: a line for each run; table, ranking: lines that are printed."""
    charts, names = charts_of(times), [each.name for each in times]
    template = Path(__file__).with_name("report.html").read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    page = environment.from_string(template).render(
        title=", ".join(dict.fromkeys(each.run_dir.path.parent.name for each in times)),
        now=datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        runs=[*zip(times, COLOURS * len(times), headings, strict=False)],
        charts=[svg(name, charts[name], names) for name in list(charts)[:MAX_CHARTS]],
        num_hidden=max(0, len(charts) - MAX_CHARTS),
        table="\n".join(table[len(headings) :]).strip("\n"),
        ranking="\n".join(ranking).strip("\n"),
        command=installation.command,
        spec_of=spec_of,
    )
    return printable(page, LAYOUT)


def spec_of(run_dir: RunDir) -> str:
    """Return the user's file of a run, and its overrides, each in a comment. Raises: OSError."""
    given = records.read_leniently(Overrides, run_dir.overrides)
    lines = [f"# {each}" for each in (given.arguments if given else ())]
    return "\n".join([(files.text_of(run_dir.spec_yaml, "replace") or "").rstrip("\n"), *lines])


def charts_of(times: Sequence[RunTimes]) -> dict[str, Chart]:
    """Return a chart of each metric that has finite values, the loss first."""
    charts: dict[str, Chart] = {"loss": {}}
    for run, each in enumerate(times):
        for line in read_metrics(each.run_dir.metrics):
            step = line.get("step")
            for name, value in line.items():
                if is_number(value) and is_number(step) and name not in NO_METRICS:
                    chart = charts.setdefault(bare(printable(name)), {})
                    chart.setdefault((run, name.startswith("eval_")), []).append((step, value))
    return {name: chart for name, chart in charts.items() if chart}


def svg(name: str, chart: Chart, names: Sequence[str]) -> str:
    """Return a chart as SVG; a held-out metric is drawn with dots. names: of the runs."""
    figure = Figure(figsize=(4.6, 2.9), layout="constrained")
    axes = figure.add_subplot()
    for (run, is_held_out), curve in chart.items():
        steps, values = zip(*curve[:: -(-len(curve) // MAX_POINTS)], strict=True)
        style = "o" if is_held_out or len(curve) == 1 else "-"
        (line,) = axes.plot(steps, values, style, color=COLOURS[run % len(COLOURS)], markersize=3)
        line.set_label(names[run] if len(names) > 1 else "held-out" if is_held_out else "training")
    sizes = sorted(abs(value) for curve in chart.values() for _, value in curve if value)
    if sizes and sizes[-1] > RULES * sizes[len(sizes) // 4]:
        axes.set_yscale("symlog", linthresh=sizes[len(sizes) // 4])
    if len(chart) <= 8:  # a longer legend hides the curves
        axes.legend(fontsize=6, framealpha=0.6)
    axes.set_title(name, parse_math=False)
    axes.set_xlabel("step")
    axes.grid(alpha=0.3)
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()[text.getvalue().index("<svg") :]
