"""The table on stdout and the JSON file of a run of the benches."""

from collections.abc import Sequence
from typing import Any

HEADS = ("bench", "", "measured", "middle half", "to reach", "reached")


def table(results: Sequence[dict[str, Any]]) -> str:
    """A row for each figure; one for a bench that gave none, with the reason."""
    rows: list[tuple[str, ...]] = [HEADS]
    for result in results:
        if reason := result["error"] or result.get("left_out"):
            rows.append((result["bench"], reason, "-", "", "", ""))
        rows += [_row(result["bench"], figure) for figure in result["figures"]]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join(lines)


def summary(results: Sequence[dict[str, Any]], seconds: float) -> str:
    verdicts = [figure["verdict"] for result in results for figure in result["figures"]]
    counts = {name: verdicts.count(name) for name in ("yes", "NO", "cannot tell")}
    return (
        f"targets: {counts['yes']} reached, {counts['NO'] + counts['cannot tell']} missed "
        f"(of which {counts['cannot tell']} cannot tell); {seconds:.0f} s in total"
    )


def describe(machine: dict[str, Any]) -> str:
    return (
        f"{machine['gpu']}, {machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}, "
        f"Python {machine['python']}, torch {machine['torch']}, load {machine['load']}"
    )


def _row(bench: str, figure: dict[str, Any]) -> tuple[str, ...]:
    value, spread, unit = figure["value"], figure["spread"], figure["unit"] and f" {figure['unit']}"
    if value is None:
        return bench, figure["what"], "-", "", figure["target"] or "-", "-"
    between = "exact" if spread is None else " to ".join(f"{each:.3f}" for each in spread)
    measured = f"{value:g}" if spread is None else f"{value:.3f}"
    target = f"{figure['target']}{unit}" if figure["target"] else "-"
    return bench, figure["what"], measured + unit, between, target, figure["verdict"] or "-"
