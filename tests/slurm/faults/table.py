"""The closing table of the fault tests, from the lines that KIT_FAULT_TABLE=FILE collected.

python -m tests.slurm.faults.table FILE
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from slurm_job_kit.jobs.rundir import read_jsonl

HEAD = ("row", "test", "proctrack", "Slurm", "passed", "stop_s", "start_s", "steps redone", "why")


def markdown(records: Iterable[dict[str, Any]]) -> str:
    """One line for each test, by row; the last line of a test that ran several times."""
    last = {(r["row"] or 99, r["test"], r.get("proctrack"), r.get("slurm")): r for r in records}
    cells = [HEAD, ("---",) * len(HEAD)]
    cells += [_cells(last[key]) for key in sorted(last, key=str_of)]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def str_of(key: Sequence[Any]) -> tuple[str, ...]:
    """A key to sort by: rows as numbers, what is missing first."""
    return (f"{key[0]:03}", *(str(part or "") for part in key[1:]))


def _cells(record: dict[str, Any]) -> tuple[str, ...]:
    name, _, case = record["test"].rstrip("]").partition("[")
    words = name.removeprefix("test_").replace("_", " ")
    proctrack = record.get("proctrack", "")  # the proctrack has its own column
    case = case.removeprefix(proctrack).removesuffix(proctrack).strip("-")
    redone = record["steps_redone"]
    return (
        str(record["row"] or ""),
        ", ".join(filter(None, [words.removeprefix(f"row {record['row'] or 0:02} "), case])),
        proctrack,
        record.get("slurm", ""),
        "yes" if record["passed"] else "NO",
        _seconds(record["stop_s"]),
        _seconds(record["start_s"]),
        "" if redone is None else str(redone),
        ", ".join(dict.fromkeys(record.get("why") or ())),
    )


def _seconds(of_attempts: Sequence[float | None]) -> str:
    return ", ".join(f"{value:.1f}" for value in of_attempts if value is not None)


if __name__ == "__main__":
    print(markdown(read_jsonl(Path(sys.argv[1]))), end="")
