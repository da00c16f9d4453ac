"""The row of the fault table of a test, and the run that the test shows."""

import json
import re
from dataclasses import dataclass
from typing import Any

from slurm_job_kit.jobs.plugins import PLUGINS

from ..kit import Kit, Run
from . import why_rows

# `make test` runs these rows, too, on the first proctrack that a test names; not each test of them.
# `make test-slow` runs those that are marked slow.
FAST = frozenset({2, 14})
# Row 8 consists of these rows on every proctrack.
ON_EVERY_PROCTRACK = frozenset({1, 2, 11})
_STORY_CHARACTERS = 8000
_NAME = re.compile(r"test_row_(\d+)_")


def row_of(test: str) -> int | None:
    """14 of `test_row_14_...`; None for a test of no row."""
    match = _NAME.match(test)
    return int(match[1]) if match else None


def is_of(row: int, test: str, has_proctrack: bool) -> bool:
    number = row_of(test)
    return number == row or (row == 8 and number in ON_EVERY_PROCTRACK and has_proctrack)


@dataclass
class Row:
    test: str
    run: Run | None = None
    answer: dict[str, Any] | None = None  # of `why`, and the records of attempts

    def record(self, run: Run) -> None:
        """Name the run of the test; call this early, for a test that fails."""
        self.run = run

    def story(self) -> str:
        if self.run is None:
            return "no run was recorded"
        told = [self.run.dir.attempts, self.run.dir.result, self.run.dir.job_log]
        texts = [f"--- {path}\n{path.read_text()}" for path in told if path.exists()]
        return "\n".join(texts)[-_STORY_CHARACTERS:]

    def ask_why(self) -> None:
        """Ask `why` about the run, once: at the test's end, or by the test if the run goes away."""
        if self.run is None or self.answer is not None or "look" not in PLUGINS:
            return
        path = self.run.dir.path
        asked = Kit(self.run.cluster, path.parent.parent).jobs("why", "--json", path)
        self.answer = json.loads(asked.stdout) | {"attempts": self.run.attempts()}

    def why_problem(self) -> str | None:
        """What is wrong with the answer of `why`; None if it names the fault of the row."""
        if "look" not in PLUGINS:
            return None
        return why_rows.problem_of(self.test, self.answer)
