"""The row of the fault table of a test, its runs, and what `why` says of the one it shows."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_job_kit.jobs.plugins import PLUGINS
from tests.core.run_files import answered

from ..kit import PACED, Kit, Run
from . import harm_storage, why_rows
from .scenario import Paced, ReferenceRuns, start

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
    """What a test has: the kit's commands, reference runs, and the run that it shows."""

    test: str
    kit: Kit
    reference: ReferenceRuns
    run: Run | None = None
    answer: dict[str, Any] | None = None  # of `why`, and the records of attempts

    def start(self, *overrides: str, pace: Path | None = None) -> Paced:
        """Submit the standard run, which the test shows."""
        paced = start(self.kit, *overrides, pace=pace)
        self.record(paced.run)
        return paced

    def begin(self, *overrides: str, step: int = 2) -> Paced:
        """`start`, once the run has trained so many steps."""
        paced = self.start(*overrides)
        paced.run.wait_for_step(step)
        return paced

    def begin_by_sbatch(self, *options: str, override: str = "") -> Paced:
        """`begin`, by plain sbatch with these options."""
        pace = self.kit.runs_root / "pace"
        pace.parent.mkdir(parents=True, exist_ok=True)
        pace.touch()
        words = (PACED, f"launch.env.PACE_FILE={pace}", *filter(None, [override]))
        options = (*options, "--nodes=3", "--time=10")
        paced = Paced(self.kit.sbatch(*options, "slurm/ddp.sbatch", *words), pace)
        self.record(paced.run)
        paced.run.wait_for_step(2)
        return paced

    def start_with_path(self, folder: Path, *overrides: str) -> Paced:
        """`start`, with `folder` first on the PATH of the batch script."""
        paced = self.start(*overrides, "slurm.sbatch_args.hold=true")
        setup = paced.run.dir.setup
        # The batch script sources the first line.
        setup.write_text(f"export PATH={folder}:$PATH; {setup.read_text()}")
        harm_storage.release(paced.run)
        return paced

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
        self.answer = answered(asked.stdout) | {"attempts": self.run.attempts()}

    def why_problem(self) -> str | None:
        """What is wrong with the answer of `why`; None if it names the fault of the row."""
        if "look" not in PLUGINS:
            return None
        return why_rows.problem_of(self.test, self.answer)
