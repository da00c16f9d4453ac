"""Runs the kit on the test cluster as a user would, and reads the files of a run."""

import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, TypeVar

from slurm_job_kit.jobs.base.files import read_json, read_jsonl
from slurm_job_kit.jobs.contract.rundir import RunDir
from tests.core.run_files import answered, read_progress_steps

from .cluster import Cluster

REPOSITORY = Path(__file__).parents[2]
# Specs of the core's parts alone.
PACED, TABLE = "tests/slurm/paced.yaml", "tests/slurm/table.yaml"
_T = TypeVar("_T")
# Only an upper bound: other programs may use the machine, too.
JOB_TIMEOUT_S = 240


@dataclass(frozen=True)
class Run:
    cluster: Cluster
    job_id: str
    dir: RunDir

    def result(self) -> dict[str, Any]:
        return dict(read_json(self.dir.result) or {})

    def attempts(self) -> list[dict[str, Any]]:
        """One record for each attempt: a later line corrects an earlier one."""
        return list({each["attempt"]: each for each in read_jsonl(self.dir.attempts)}.values())

    def wait(
        self, states: str | Collection[str] = "COMPLETED", timeout_s: float = JOB_TIMEOUT_S
    ) -> dict[str, str]:
        return self.cluster.wait_job(self.job_id, states, timeout_s)

    def wait_for(
        self, condition: Callable[[], _T | None], what: str, timeout_s: float = JOB_TIMEOUT_S
    ) -> _T:
        return self.cluster.wait_for(condition, f"{what} of {self.dir.path}", timeout_s)

    def wait_for_step(self, step: int) -> None:
        self.wait_for(
            lambda: (read_progress_steps(self.dir.progress)[0] or 0) >= step, f"step {step}"
        )

    def wait_for_attempts(self, number: int = 1) -> None:
        self.wait_for(lambda: len(self.attempts()) >= number, f"the end of attempt {number}")

    def events(self, name: str, attempt: int | None = None) -> list[dict[str, Any]]:
        """The timeline events of a name, of all ranks, in one attempt or all."""
        writers = sorted((self.dir.path / "timeline").glob("rank-*.jsonl"))
        event_list = [event for path in writers for event in read_jsonl(path)]
        return [e for e in event_list if e["event"] == name and attempt in (None, e["attempt"])]

    def wait_for_events(self, name: str, number: int = 1, attempt: int | None = None) -> None:
        """Wait until the ranks have recorded so many events of a name."""
        what = f"{number} events {name} in attempt {attempt or 'any'}"
        self.wait_for(lambda: len(self.events(name, attempt)) >= number, what)

    def loaded(self, attempt: int) -> set[int]:
        """The steps at which the ranks of an attempt began: one value, unless the ranks differ."""
        return {event["step"] for event in self.events("loaded", attempt)}

    def log(self, rank: int = 0) -> str:
        logs = self.dir.path.glob(f"attempt-*/rank-{rank:05d}.log")
        return "".join(path.read_text() for path in sorted(logs))


@dataclass(frozen=True)
class Kit:
    """The kit's commands, with a separate runs root."""

    cluster: Cluster
    runs_root: Path
    repository: Path = REPOSITORY

    def run(
        self, *argv: str | Path, check: bool = True, timeout_s: float = JOB_TIMEOUT_S
    ) -> CompletedProcess[str]:
        """Run a command in the repository, as from a user's shell."""
        env = ("env", f"KIT_RUNS={self.runs_root}", f"KIT_PYTHON={sys.executable}", "KIT_SITE=")
        return self.cluster.run_as_user(
            *env, *argv, check=check, cwd=self.repository, timeout_s=timeout_s
        )

    def jobs(self, *argv: str | Path, check: bool = True) -> CompletedProcess[str]:
        return self.run(sys.executable, "-m", "jobs", *argv, check=check)

    def submit(self, config: str | Path, *overrides: str) -> Run:
        """Submit by the Python command; without the check of model and data, to save its time."""
        said = answered(self.jobs("submit", "--json", "--no-check", config, *overrides).stdout)
        return Run(self.cluster, said["job_id"], RunDir(Path(said["run_dir"])))

    def resume(self, run: Run, *words: str) -> Run:
        """Continue a run that stopped, with another job; `words`: overrides, --yes."""
        said = answered(self.jobs("resume", "--json", run.dir.path, *words).stdout)
        return Run(self.cluster, said["job_id"], run.dir)

    def sbatch(self, *argv: str | Path) -> Run:
        """Submit by plain sbatch; returns when the job has made its run directory."""
        output = f"--output={self.runs_root}/%j.out"
        job_id = self.run("sbatch", "--parsable", output, *argv).stdout.strip()
        links = self.runs_root / ".jobs"

        def found() -> list[Path]:
            return list(links.glob(f"*-{job_id}"))

        link = self.cluster.wait_for(found, f"run directory of job {job_id}", JOB_TIMEOUT_S)[0]
        return Run(self.cluster, job_id, RunDir(link.resolve()))
