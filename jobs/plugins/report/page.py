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

from ...base.console import LAYOUT, printable
from .ranking import NO_METRICS, bare, is_number, read_metrics
from .uses import RunTimes

matplotlib.rcdefaults()  # not what a matplotlibrc of the working directory says: it may run latex
MAX_CHARTS = 12
MAX_POINTS = 400  # of one curve: a chart is 400 pixels wide
COLOURS = ("#0b62c4", "#c2410c", "#15803d", "#9333ea", "#b45309", "#0e7490", "#be185d", "#4d7c0f")
Curve = list[tuple[float, float]]


def page_of(times: Sequence[RunTimes], headings: Sequence[str], table: Sequence[str]) -> str:
    """Return the page. headings: a line for each run; table: the lines of the printed report."""
    charts = charts_of([curves_of(each) for each in times])
    template = Path(__file__).with_name("report.html").read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    page = environment.from_string(template).render(
        title=", ".join(each.name for each in times[:3]),
        now=datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        runs=[(COLOURS[n % len(COLOURS)], text) for n, text in enumerate(headings)],
        charts=[svg(name, charts[name]) for name in list(charts)[:MAX_CHARTS]],
        num_hidden=max(0, len(charts) - MAX_CHARTS),
        table="\n".join(table[len(headings) :]).strip("\n"),
        attempts=[(each.name, [a.as_json() for a in each.attempts]) for each in times],
    )
    return printable(page, LAYOUT)


def curves_of(times: RunTimes) -> dict[str, Curve]:
    """Return the finite values of each metric of a run by its step."""
    curves: dict[str, Curve] = {}
    for line in read_metrics(times.run_dir.metrics):
        step = line.get("step")
        for name, value in line.items():
            if is_number(value) and is_number(step) and name not in NO_METRICS:
                curves.setdefault(printable(name), []).append((step, value))
    return {name: curve[:: -(-len(curve) // MAX_POINTS)] for name, curve in curves.items()}


def charts_of(runs: Sequence[dict[str, Curve]]) -> dict[str, list[tuple[int, bool, Curve]]]:
    """Return the curves of each chart: (run, whether it is held out, points), the loss first."""
    charts: dict[str, list[tuple[int, bool, Curve]]] = {"loss": []}
    for run, curves in enumerate(runs):
        for name, curve in curves.items():
            charts.setdefault(bare(name), []).append((run, name.startswith("eval_"), curve))
    return {name: curves for name, curves in charts.items() if curves}


def svg(name: str, curves: Sequence[tuple[int, bool, Curve]]) -> str:
    """Return a chart as SVG; a held-out metric is drawn with dots."""
    figure = Figure(figsize=(4.6, 2.9), layout="constrained")
    axes = figure.add_subplot()
    for run, is_held_out, curve in curves:
        steps, values = zip(*curve, strict=True)
        style = "o" if is_held_out or len(curve) == 1 else "-"
        axes.plot(steps, values, style, color=COLOURS[run % len(COLOURS)], markersize=3)
    axes.set_title(name, parse_math=False)
    axes.set_xlabel("step")
    axes.grid(alpha=0.3)
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()[text.getvalue().index("<svg") :]
