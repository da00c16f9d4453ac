"""Prints rows of texts: a folded table or stacked lines on a terminal, else plain columns.

rich draws the table. Where it cannot be imported, a terminal gets the stacked lines.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence

Row = dict[str, str]  # the text of each column that the run has
# Columns that take half a terminal as one line of text: at least this wide where they are folded.
MIN_FOLDED = 22


def text(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """Return the rows as text for stdout, no wider than it if it is a terminal; nothing is cut."""
    if not sys.stdout.isatty():
        return plain_columns(rows, columns)
    width = shutil.get_terminal_size().columns
    return folded_table(rows, columns, width) or stacked_lines(rows, columns, width)


def plain_columns(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """Return aligned columns below a header, a row a line; `-` for what a row lacks."""
    table = [list(columns), *([row.get(name) or "-" for name in columns] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [zip(row, widths, strict=True) for row in table]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in line).rstrip() for line in lines
    )


def folded_table(rows: Sequence[Row], columns: Sequence[str], width: int) -> str | None:
    """Return a table of the columns that a row has, with long texts folded; None if too wide."""
    try:
        from rich.console import Console
        from rich.measure import Measurement
        from rich.table import Table
        from rich.text import Text
    except ImportError:  # an active environment that has torch and not all packages of the lock
        return None
    used = [name for name in columns if any(row.get(name) for row in rows)]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in used:
        longest = max(len(row.get(name, "")) for row in rows)
        table.add_column(name, overflow="fold", min_width=min(longest, MIN_FOLDED))
    for row in rows:
        table.add_row(*(Text(row.get(name) or "-") for name in used))
    console = Console(width=width, file=sys.stdout)
    if Measurement.get(console, console.options.update(max_width=10_000), table).minimum > width:
        return None
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().rstrip("\n").split("\n"))


def stacked_lines(rows: Sequence[Row], columns: Sequence[str], width: int) -> str:
    """Return the rows below each other: the first column as title, the rest as folded lines."""
    title, *others = columns
    labels = max(map(len, others)) + 2
    lines = []
    for row in rows:
        lines += textwrap.wrap(row.get(title, "-"), width)
        for name in others:
            if value := row.get(name):
                lines += _field(name.lower(), value, labels, width)
    return "\n".join(lines)


def _field(label: str, value: str, labels: int, width: int) -> list[str]:
    """Return the lines of one field; all after the first are indented by `labels` + 2 blanks."""
    first = f"  {label.ljust(labels)}"
    room = max(width, len(first) + 10)  # of a terminal that is narrower than that
    rest = " " * len(first)
    return textwrap.wrap(
        value, room, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False
    )
