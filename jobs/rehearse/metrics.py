"""Compares the lines with numbers that runs printed or wrote as text."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from slurm_job_kit.jobs.rehearse.scenarios import Tried

_FRACTION = re.compile(
    r"-?\d+\.\d+(?:[eE][-+]?\d+)?|-?\d+[eE][-+]?\d+|\bnan\b|\binf\b", re.IGNORECASE
)
SUFFIXES = (".jsonl", ".csv", ".tsv", ".txt", ".log")


def compare(first: Tried, again: Tried, others: Sequence[Tried]) -> tuple[int, int, str] | None:
    """Return how many lines have other numbers in a disturbed run, of how many, and the first one.

    A line counts if it has a whole number, such as a step, and a fraction, and if both undisturbed
    runs have it. Another run may lack it, as where it was stopped; None without any such line.
    """
    expected = sorted({*_lines(first)} & {*_lines(again)})
    counted = [line for line in expected if _key(line)]
    if not counted:
        return None
    wrong: dict[str, str] = {}
    for run in others:
        found = defaultdict(set)
        for line in _lines(run):
            found[_key(line)].add(line)
        for line in counted:
            same = found.get(_key(line))
            if same and line not in same:
                wrong.setdefault(line, f"{run.scenario.name}: {min(same)} is not {line}")
    return len(wrong), len(counted), next(iter(wrong.values()), "")


def _key(line: str) -> str:
    """Return a line without its fractions; empty if it has none, or no other digit."""
    key, count = _FRACTION.subn("#", line)
    return key if count and re.search(r"\d", key) else ""


def _lines(run: Tried) -> Iterator[str]:
    for start in run.starts:
        yield from map(str.strip, start.output.splitlines())
    begun = min((process.t for process in run.processes), default=0.0)
    for path in run.home.rglob("*"):
        if path.suffix in SUFFIXES and path.is_file() and path.stat().st_mtime >= begun:
            text = path.read_text(encoding="utf-8", errors="replace")
            yield from map(str.strip, text.splitlines())
