"""Prints rows of texts as aligned columns; below each other where a terminal is too narrow."""

import shutil
import sys
from collections.abc import Sequence

from ..base.console import printable

Row = dict[str, str]  # the text of each column that the run has


def text(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """Return the rows as text for stdout: the columns that any row has, `-` for what one lacks."""
    used = [name for name in columns if any(row.get(name) for row in rows)]
    rows = [{name: printable(cell) for name, cell in row.items()} for row in rows]
    lines = [used, *([row.get(name) or "-" for name in used] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    if sys.stdout.isatty() and sum(widths) + 2 * len(widths) > shutil.get_terminal_size().columns:
        return stacked(rows, used)
    padded = [[cell.ljust(n) for cell, n in zip(line, widths, strict=True)] for line in lines]
    return "\n".join("  ".join(line).rstrip() for line in padded)


def stacked(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """Return the rows below each other: the first column as title, a line for each other one."""
    title, *others = columns
    width = max(map(len, others), default=0) + 2
    lines = []
    for row in rows:
        lines.append(row.get(title) or "-")
        lines += [f"  {n.lower():<{width}}{row[n]}".rstrip() for n in others if row.get(n)]
    return "\n".join(lines)
