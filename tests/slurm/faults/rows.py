"""The row of the fault table of a test, and the test's line in the closing table."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from typing import Any

from ..cluster import Cluster
from ..kit import Kit, Run
from . import why_rows

# `make test` runs these rows, too, on the first proctrack that a test names; not each test of them.
# `make test-slow` runs those that are marked slow.
FAST = frozenset({2, 14})
# Row 8 consists of these rows on every proctrack.
ON_EVERY_PROCTRACK = frozenset({1, 2, 11})
TABLE = "KIT_FAULT_TABLE"
_STORY_CHARACTERS = 8000
_NAME = re.compile(r"test_row_(\d+)_")


def row_of(test: str) -> int | None:
    """14 of `test_row_14_...`; None for a test of no row."""
    match = _NAME.match(test)
    return int(match[1]) if match else None


def is_of(row: int, test: str, has_proctrack: bool) -> bool:
    """Whether a test belongs to a row."""
    number = row_of(test)
    return number == row or (row == 8 and number in ON_EVERY_PROCTRACK and has_proctrack)


def slurm_version(cluster: Cluster) -> str:
    """The version of a cluster's Slurm, such as 22.05.8; empty if it reports none."""
    return "".join(cluster.run("sinfo", "--version", check=False).stdout.split()[-1:])


def text_of(answer: dict[str, Any]) -> str:
    """An answer of `why --json` in one line."""
    delays = [f"{each['cause']}: {each['text']}" for each in answer["delays"]]
    return "; ".join([f"{answer['cause']}: {answer['text']}", *delays])


@dataclass
class Row:
    """One test's line of the table; written when the test ends, passed or not."""

    test: str
    number: int | None
    run: Run | None = None
    site: dict[str, str] = field(default_factory=dict)
    answer: dict[str, Any] | None = None  # of `why`

    def record(self, run: Run, number: int | None = None) -> None:
        """Name the run of this line. Its figures are read at the end, so call this early."""
        self.run = run
        self.number = self.number if number is None else number

    def story(self) -> str:
        """The facts about the run, for a test that failed."""
        if self.run is None:
            return "no run was recorded"
        told = [self.run.dir.attempts, self.run.dir.result, self.run.dir.job_log]
        texts = [f"--- {path}\n{path.read_text()}" for path in told if path.exists()]
        return "\n".join(texts)[-_STORY_CHARACTERS:]

    def see(self, cluster: Cluster) -> None:
        """Record the properties of the cluster."""
        self.site = {"proctrack": cluster.site.proctrack, "slurm": slurm_version(cluster)}

    def ask_why(self) -> None:
        """Ask `why` about the run, once: at the test's end, or by the test if the run goes away."""
        if self.run is None or self.answer is not None:
            return
        path = self.run.dir.path
        asked = Kit(self.run.cluster, path.parent.parent).jobs("why", "--json", path)
        self.answer = json.loads(asked.stdout)

    def why_problem(self) -> str | None:
        """What is wrong with the answer of `why`; None if it names the fault of the row."""
        expected = why_rows.expected_of(self.test)
        if self.answer is not None:
            return why_rows.problem_of(self.test, self.answer)
        is_asked_for = expected is not None and not isinstance(expected, why_rows.Nothing)
        return f"{self.test}: no run was recorded" if is_asked_for else None

    def write(self, passed: bool) -> None:
        """Append the line to the file in KIT_FAULT_TABLE, if that is set."""
        if path := os.environ.get(TABLE):
            with open(path, "a", encoding="utf-8") as table:
                table.write(json.dumps(self.line(passed)) + "\n")

    def line(self, passed: bool) -> dict[str, Any]:
        """The figures from the run directory."""
        head = {"row": self.number, "test": self.test, **self.site, "passed": passed}
        attempts = self.run.attempts() if self.run else []
        result = self.run.result() if self.run else {}
        return head | {
            "causes": [attempt["cause"] for attempt in attempts],
            "stop_s": [attempt["times"].get("stop_s") for attempt in attempts],
            "start_s": [attempt["times"].get("start_s") for attempt in attempts],
            "steps_redone": result.get("steps_redone"),
            "why": None if self.answer is None else why_rows.named_in(self.answer),
            "why_text": None if self.answer is None else text_of(self.answer),
        }
