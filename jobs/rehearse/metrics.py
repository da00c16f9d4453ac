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
    runs have the same lines that differ from it in fractions only. Another run may lack it, as
    where it was stopped, or where two ranks wrote into one line; it is wrong if it has another
    line in its place. None without any such line.
    """
    expected, repeated = _by_key(first), _by_key(again)
    expected = {key: lines for key, lines in expected.items() if repeated.get(key) == lines}
    if not expected:
        return None
    wrong: dict[str, str] = {}
    for run in others:
        for key, lines in _by_key(run).items():
            known = expected.get(key, lines)
            for line in sorted(known - lines) if lines - known else ():
                wrong.setdefault(line, f"{run.scenario.name}: {min(lines - known)} is not {line}")
    number = sum(map(len, expected.values()))
    return len(wrong), number, next(iter(wrong.values()), "")


def _by_key(run: Tried) -> dict[str, set[str]]:
    found = defaultdict(set)
    for line in _lines(run):
        if key := _key(line):
            found[key].add(line)
    return found


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
