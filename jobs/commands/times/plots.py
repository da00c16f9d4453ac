"""Draws charts as SVG with matplotlib.

The text stays text, so that it can be selected. Colours are variables of the page's style sheet, so
that a chart is readable on light and on dark.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .charts import Bars, Chart

NUM_COLOURS = 8
SIZE_INCHES = (4.6, 2.9)
MAX_LABEL = 40
# Of two numbers at the top of a chart, as a share of its width.
MIN_DISTANCE = 0.05
# Colours in the SVG that matplotlib writes, and what they become.
TEXT, GRID = "#010203", "#040506"
RUN_COLOURS = [f"#0708{index:02d}" for index in range(10, 10 + NUM_COLOURS)]
VARIABLES = {
    TEXT: "currentColor",
    GRID: "var(--grid)",
    **{colour: f"var(--run-{index})" for index, colour in enumerate(RUN_COLOURS)},
}
SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a metric may be named "$"
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "axes.edgecolor": GRID,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "axes.formatter.limits": (-4, 6),
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), TEXT),
    **dict.fromkeys(("axes.titlecolor",), TEXT),
}


def svg_of_chart(chart: Chart) -> str:
    """Return a chart over the steps, as an SVG element. Raises: ImportError without matplotlib."""
    from matplotlib.ticker import NullFormatter

    with figure(chart.title) as (axes, written):
        for line in chart.lines:
            draw_line(axes, line)
        if chart.is_logarithmic:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter(NullFormatter())
        draw_marks(axes, chart)
        axes.margins(x=0.02)
        if chart.is_amount:
            highest = max(point.high for line in chart.lines for point in line.points)
            axes.set_ylim(0, 1.08 * highest or 1)
        axes.xaxis.get_major_locator().set_params(integer=True, nbins=6)
        axes.set_xlabel("step")
    return written()


def draw_marks(axes: Any, chart: Chart) -> None:
    """Draw a dashed line where each later attempt began, with its number if there is room."""
    xs = [point.x for line in chart.lines for point in line.points] or [0]
    room, numbered = (max(xs) - min(xs)) * MIN_DISTANCE, -math.inf
    for run, step, attempt in sorted(chart.marks, key=lambda mark: mark[1]):
        colour = RUN_COLOURS[run % NUM_COLOURS]
        axes.axvline(step, color=colour, alpha=0.55, linewidth=0.9, linestyle=(0, (3, 3)))
        if step - numbered > room:
            where = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
            place = {"xytext": (2, -1), "va": "top", "fontsize": 8}
            axes.annotate(str(attempt), (step, 1), color=colour, **where, **place)
            numbered = step


def draw_line(axes: Any, line: Any) -> None:
    """Draw one curve, in a band where it is thinned out; a single point is a dot."""
    xs, ys, lows, highs = zip(*line.points, strict=True)
    colour = RUN_COLOURS[line.run % NUM_COLOURS]
    if lows != highs:
        axes.fill_between(xs, lows, highs, color=colour, alpha=0.25, linewidth=0)
    style: dict[str, Any] = {"linewidth": 0.8 if line.is_held_out else 1.4}
    if line.is_held_out or len(xs) == 1:
        style |= {"marker": "o", "markersize": 4 if len(xs) <= 50 else 2}
    axes.plot(xs, ys, color=colour, **style)


def svg_of_bars(bars: Bars) -> str:
    """Return horizontal bars, as an SVG element. Raises: ImportError without matplotlib."""
    num_runs = max((len(values) for _, values in bars.rows), default=1)
    with figure(bars.title) as (axes, written):
        names = [name for name, _ in bars.rows]
        height = 0.8 / num_runs
        for run in range(num_runs):
            places = [index - 0.4 + (run + 0.5) * height for index in range(len(names))]
            values = [values[run] for _, values in bars.rows]
            axes.barh(places, values, height=height, color=RUN_COLOURS[run % NUM_COLOURS])
        axes.set_yticks(range(len(names)), names, fontsize=8)
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        if num_runs == 1:
            for index, (_, (value,)) in enumerate(bars.rows):
                text = f" {value:.1f}" if value < 100 else f" {value:.0f}"
                axes.text(value, index, text, va="center", fontsize=8)
            axes.margins(x=0.1)
    return written()


@contextmanager
def figure(title: str) -> Iterator[tuple[Any, Callable[[], str]]]:
    """Yield axes, and a function that returns the SVG element once they are drawn."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    # The ids in an SVG are hashes with this salt: charts of one page must not share them.
    with mpl.rc_context({**SETTINGS, "svg.hashsalt": title}):
        drawn = Figure(figsize=SIZE_INCHES, layout="constrained")
        FigureCanvasSVG(drawn)
        axes = drawn.add_subplot()
        axes.set_title(shorten(title))
        texts: list[str] = []
        yield axes, lambda: texts[0]
        file = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        drawn.savefig(file, format="svg", transparent=True, metadata=nothing)
        texts.append(clean_svg(file.getvalue(), title))


def clean_svg(svg: str, title: str) -> str:
    """Return the SVG element with the page's colours, without size, prolog and ids that repeat."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r'(<svg [^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg [^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'style="[^"]*"', with_variables, svg)
    return svg.replace("<svg ", '<svg role="img" ', 1)


def with_variables(style: re.Match[str]) -> str:
    """Return a style attribute with the page's font, and its variables in place of colours."""
    text = style[0]
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, variable)
    return re.sub(r"font: ([\w ]*?)([\d.]+px) [^;\"]*", r"font: \1\2 system-ui, sans-serif", text)


def shorten(text: str) -> str:
    """Return a text for a chart: printable, and not longer than a chart is wide."""
    shown = "".join(each if each.isprintable() else "?" for each in text)
    return shown if len(shown) <= MAX_LABEL else shown[: MAX_LABEL - 1] + "…"
