"""A run of the kit on this machine, from its submit command, observed by its own records."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import yaml

from slurm_job_kit.jobs.base.files import read_jsonl
from slurm_job_kit.jobs.contract.rundir import RunDir
from tests.core.waiting import wait_for

REPOSITORY = Path(__file__).resolve().parents[3]
FOREIGN = ("KIT_", "SLURM_", "SBATCH_", "PYTHONPATH", "OMP_")
LIMIT_S = 180


def environment(**more: str) -> dict[str, str]:
    """The variables of a user's shell, without those of the bench."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    return kept | more


class LocalRun:
    """`python -m jobs submit CONFIG --cluster local --no-check`, of two nodes with one rank each.

    begun: when the command was started, in seconds since the epoch.
    """

    def __init__(self, folder: Path, spec: Mapping[str, Any], tracer: Sequence[str] = ()) -> None:
        """`spec`: the keys other than name and number of nodes. `tracer`: before the command."""
        folder.mkdir()
        config, self._log = folder / "bench.yaml", folder / "submit.log"
        config.write_text(yaml.safe_dump({"name": "bench", "slurm": {"nodes": 2}, **spec}))
        self._runs, self._latest = folder / "runs", folder / "runs/bench/latest"
        self.begun = time.time()
        self.start("submit", str(config), "--no-check", tracer=tracer)

    def start(self, *words: str, tracer: Sequence[str] = ()) -> None:
        """Start `python -m jobs WORDS --cluster local`, also after a command that has ended."""
        with open(self._log, "ab") as log:
            self.process = subprocess.Popen(
                [*tracer, sys.executable, "-m", "jobs", *words, "--cluster", "local"],
                cwd=REPOSITORY,
                env=environment(KIT_RUNS=str(self._runs)),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def dir(self) -> RunDir:
        """The run directory; waits for it. Raises: RuntimeError if the command failed before."""
        wait_for(lambda: self._latest.exists() or self.process.poll(), "no run directory")
        if not self._latest.exists():
            raise self._failure()
        return RunDir(self._latest.resolve())

    def events(self, writer: str, attempt: int | None) -> dict[str, dict[str, Any]]:
        """The first event of each name that a writer recorded in an attempt."""
        lines = read_jsonl(self.dir.timeline(writer))
        mine = [each for each in lines if each["attempt"] == attempt]
        return {each["event"]: each for each in reversed(mine)}

    def ranks_with(self, name: str, attempt: int) -> list[dict[str, dict[str, Any]]]:
        """The events of both ranks, once both have recorded this one; until then nothing.

        Raises: RuntimeError if the command has ended without it.
        """
        has_ended = self.process.poll() is not None
        events = [self.events(f"rank-{rank:05d}", attempt) for rank in (0, 1)]
        if all(name in each for each in events):
            return events
        if has_ended:
            raise self._failure()
        return []

    def wait(self) -> None:
        """Wait for the end of a run that completes."""
        if self.process.wait(LIMIT_S):
            raise self._failure()

    def _failure(self) -> RuntimeError:
        return RuntimeError(f"the run ended:\n{self._log.read_text()}")

    def stop(self) -> None:
        """Stop the run: it saves and ends."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        self.process.wait(LIMIT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Kill a command that still runs; its agents die with it, and their ranks with them."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)  # with a tracer, which is its parent
            self.process.wait()
