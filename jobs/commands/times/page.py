"""Writes the report as one HTML page without any external resource."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from html import escape

from . import charts, plots, terminal
from .curves import Curves
from .history import AttemptHistory
from .summary import TimeSummary

NO_PLOTS = "No plots: matplotlib is missing. pip install matplotlib, then make the report again."
NO_METRICS = "No metrics.jsonl: the ranks are a script of your own, or they logged no step yet."
LEGEND = (
    "Lines: training. Dots: held-out. Bands: from the smallest to the largest value of many. "
    "Dashed: a later attempt began at this step."
)
MAX_ATTEMPTS = 200
LIGHT = "#0b62c4 #c2410c #15803d #9333ea #b45309 #0e7490 #be185d #4d7c0f"
DARK = "#6cb2ff #ff9a62 #5fd38d #c99cff #f3c057 #5ed0e6 #ff8abf #b3db5e"
STYLE = """
:root { color-scheme: light dark; --bg: #ffffff; --fg: #1b2026; --muted: #59636e; --grid: #d5dbe1;
  --card: #f6f8fa; LIGHT }
@media (prefers-color-scheme: dark) { :root { --bg: #0f1419; --fg: #e4e8ec; --muted: #9aa5b1;
  --grid: #3a444e; --card: #182028; DARK } }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 20px; max-width: 1500px; background: var(--bg); color: var(--fg);
  font: 15px/1.45 system-ui, sans-serif; overflow-wrap: anywhere }
h1 { font-size: 22px; margin: 0 0 8px } h2 { font-size: 17px; margin: 28px 0 10px }
p { margin: 4px 0 } .muted { color: var(--muted); font-size: 13px }
.key { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 6px }
.grid { display: grid; grid-template-columns: repeat(3, minmax(0, 1fr)); gap: 14px }
.grid figure { margin: 0; padding: 8px; background: var(--card); border: 1px solid var(--grid);
  border-radius: 8px }
.grid svg { display: block; width: 100%; height: auto; color: var(--fg) }
figcaption { color: var(--muted); font-size: 12px; padding: 2px 6px }
.side { display: flex; flex-wrap: wrap; gap: 0 56px } .wide { overflow-x: auto; max-width: 100% }
 table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: 3px 12px 3px 0; text-align: left; white-space: nowrap }
tr { border-bottom: 1px solid var(--grid) } th { color: var(--muted); font-weight: 600 }
th[colspan] { white-space: normal; min-width: 150px }
.number { text-align: right } .phase { padding-left: 18px }
code { font: 13px ui-monospace, monospace; background: var(--card); padding: 1px 4px }
@media (max-width: 1000px) { .grid { grid-template-columns: repeat(2, minmax(0, 1fr)) } }
@media (max-width: 640px) { body { padding: 12px } .grid { grid-template-columns: 1fr } }
"""


def page_of(
    summaries: Sequence[TimeSummary], curves: Sequence[Curves], commands: Sequence[str]
) -> str:
    """Return the page. commands: what the user may run next, each shown as a line."""
    title = ", ".join(terminal.name_of(each) for each in summaries[:3])
    title += f" and {len(summaries) - 3} more" if len(summaries) > 3 else ""
    now = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    body = [
        f"<h1>{escape(title)}</h1>",
        *(headline(index, each) for index, each in enumerate(summaries)),
        f'<p class="muted">made {escape(now)}</p>',
        *plots_of(summaries, curves),
        '<div class="side"><div class="wide"><h2>Where the time went</h2>',
        time_table(summaries),
        '</div><div class="wide">',
        *(part for each in summaries for part in attempts_of(each)),
        "</div></div>",
        *(["<h2>Commands</h2>"] if commands else []),
        *(f"<p><code>{escape(terminal.printable(command))}</code></p>" for command in commands),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{style()}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def style() -> str:
    """Return the style sheet, with a colour for each run."""
    text = STYLE
    for place, colours in (("LIGHT", LIGHT), ("DARK", DARK)):
        numbered = enumerate(colours.split())
        variables = " ".join(f"--run-{index}: {colour};" for index, colour in numbered)
        text = text.replace(place, variables)
    return text


def headline(index: int, summary: TimeSummary) -> str:
    """Return a run with its colour in the plots, and its times."""
    colour = f'<span class="key" style="background: var(--run-{index % plots.NUM_COLOURS})"></span>'
    return "<p>" + colour + escape(terminal.heading(summary)).replace("\n", "<br>") + "</p>"


def plots_of(summaries: Sequence[TimeSummary], curves: Sequence[Curves]) -> list[str]:
    """Return the plots in a grid; one line that explains it where there are none."""
    chart_list = charts.charts_of(summaries, curves)
    notes = [] if any(each.metrics for each in curves) else [f'<p class="muted">{NO_METRICS}</p>']
    try:
        figures = [frame(plots.svg_of_bars(charts.time_bars(summaries)), "")]
        figures += [frame(plots.svg_of_chart(each), each.note) for each in chart_list]
    except ImportError:
        return [*notes, f'<p class="muted">{NO_PLOTS}</p>']
    hidden = len([n for n in charts.metric_names(curves) if n != "lr"]) - charts.MAX_METRIC_CHARTS
    if hidden > 0:
        notes.append(f'<p class="muted">{hidden} more metrics are in metrics.jsonl.</p>')
    return [
        '<div class="grid">',
        *figures,
        "</div>",
        f'<p class="muted">{LEGEND}</p>',
        *notes,
    ]


def frame(svg: str, note: str) -> str:
    """Return a plot in a frame, with a note below."""
    caption = f"<figcaption>{escape(note)}</figcaption>" if note else ""
    return f"<figure>{svg}{caption}</figure>"


def time_table(summaries: Sequence[TimeSummary]) -> str:
    """Return the time and the share of each use, by run."""
    names = [""] + [terminal.name_of(each) if len(summaries) > 1 else "" for each in summaries]
    lines = []
    for title, cells in terminal.rows_of(summaries):
        kind = ' class="phase"' if title.startswith(" ") else ""
        texts = [f"{terminal.duration(time)}</td>" for time, _ in cells]
        shares = [f'<td class="number">{share:.1%}</td>' for _, share in cells]
        pairs = [f'<td class="number">{a}{b}' for a, b in zip(texts, shares, strict=True)]
        lines.append(f"<tr><td{kind}>{escape(title.strip())}</td>{''.join(pairs)}</tr>")
    heads = "".join(f'<th class="number" colspan="2">{escape(name)}</th>' for name in names[1:])
    head = f"<tr><th></th>{heads}</tr>" if len(summaries) > 1 else ""
    return f"<table>{head}{''.join(lines)}</table>"


def attempts_of(summary: TimeSummary) -> Iterable[str]:
    """Yield the attempts of a run as a table, the newest ones."""
    attempts = summary.history.attempts[-MAX_ATTEMPTS:]
    if not attempts:
        return
    yield f"<h2>Attempts of {escape(terminal.name_of(summary))}</h2>"
    if len(attempts) < len(summary.history.attempts):
        text = f"the newest {len(attempts)} of {len(summary.history.attempts)}"
        yield f'<p class="muted">{text}; all are in attempts.jsonl</p>'
    heads = ("attempt", "job", "nodes", "began", "time", "steps", "cause", "decision")
    rows = "".join(attempt_row(summary, each) for each in attempts)
    head = "".join(f"<th>{each}</th>" for each in heads)
    yield f"<table><tr>{head}</tr>{rows}</table>"


def attempt_row(summary: TimeSummary, attempt: AttemptHistory) -> str:
    """Return one attempt as a row of the table."""
    time = sum(span.length for span in summary.spans if span.attempt == attempt.number)
    began = datetime.datetime.fromtimestamp(attempt.start / 1000).astimezone()
    steps = "-"
    if attempt.begin_step is not None:
        last = "" if attempt.last_step is None else str(attempt.last_step)
        steps = f"{attempt.begin_step + 1} to {last}" if last else f"from {attempt.begin_step + 1}"
    hosts = sorted({*attempt.nodes})
    shown = ", ".join(hosts[:4]) + (f" and {len(hosts) - 4} more" if len(hosts) > 4 else "")
    cause = "-" if attempt.record is None else attempt.record.cause.value.replace("_", " ")
    cells = (
        *(str(attempt.number), attempt.job_id, shown, began.strftime("%Y-%m-%d %H:%M:%S")),
        *(terminal.duration(time), steps, cause, attempt.decision or "-"),
    )
    return (
        "<tr>" + "".join(f"<td>{escape(terminal.printable(each))}</td>" for each in cells) + "</tr>"
    )
