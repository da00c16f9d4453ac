"""The table on stdout and the JSON file of a run of the benches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

HEADS = ("bench", "", "measured", "middle half", "to reach", "reached")


def table(results: Sequence[dict[str, Any]]) -> str:
    """A row for each figure; one for a bench that gave none, with the reason."""
    rows: list[tuple[str, ...]] = [HEADS]
    for result in results:
        if result["error"] is not None:
            rows.append((result["bench"], result["error"], "-", "", "", ""))
        rows += [_row(result["bench"], figure) for figure in result["figures"]]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join(lines)


def describe(machine: dict[str, Any]) -> str:
    """The machine in one line."""
    return (
        f"{machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}, "
        f"Python {machine['python']}, torch {machine['torch']}, load {machine['load']}"
    )


def _row(bench: str, figure: dict[str, Any]) -> tuple[str, ...]:
    spread, is_reached = figure["spread"], figure["is_reached"]
    between = "exact" if spread is None else " to ".join(f"{value:.3f}" for value in spread)
    measured = f"{figure['value']:g}" if spread is None else f"{figure['value']:.3f}"
    reached = "-" if is_reached is None else "yes" if is_reached else "NO"
    return bench, figure["what"], measured, between, figure["target"] or "-", reached
