"""What this rank works on: rank 0 finds (or freezes) the run and tells the others.

It does so over the process group, so a rank on a machine without the shared file system needs no
file of the run directory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from jobs.rundir import AttemptDir, RunDir
from jobs.spec import Spec, Train
from trainer.context import DistributedContext, broadcast_bytes
from trainer.errors import UserError
from trainer.events import Events

REPOSITORY = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Run:
    """The run at hand: its directory, its frozen spec, and the number of this attempt."""

    dir: RunDir
    spec: Spec
    attempt: int | None

    @property
    def attempt_dir(self) -> AttemptDir | None:
        """Where this attempt writes its outcome; None for a launch by hand."""
        return attempt_dir(self.dir, self.attempt)


@dataclass(frozen=True)
class Job:
    """A run, and this rank's part in it."""

    run: Run
    context: DistributedContext
    device: torch.device
    events: Events

    @property
    def train(self) -> Train:
        """The hyperparameters."""
        return self.run.spec.train


def attempt_dir(run_dir: RunDir, attempt: int | None) -> AttemptDir | None:
    """The directory of attempt K; None for a launch by hand."""
    return None if attempt is None else run_dir.attempt(attempt)


def is_run_dir(path: Path) -> bool:
    """Whether a path is a run directory, which has a frozen spec."""
    return RunDir(path).spec.is_file()


def find_run(arguments: list[str]) -> RunDir:
    """The run directory that the command line means; a YAML config is frozen into a new one."""
    if not arguments:
        raise UserError("usage: torchrun ... -m trainer RUN_DIR | CONFIG [KEY=VALUE ...]")
    path, overrides = Path(arguments[0]), arguments[1:]
    if path.is_dir():
        if overrides:
            raise UserError(f"{path} is frozen: {' '.join(overrides)} needs a config or a resume")
        if not is_run_dir(path):
            raise UserError(f"{path} is no run directory: it has no {RunDir(path).spec.name}")
        return RunDir(path.resolve())
    if not path.is_file():
        raise UserError(f"{path}: there is no such run directory or config")
    return _freeze(arguments)


def _freeze(arguments: list[str]) -> RunDir:
    search_path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", "jobs", "freeze", *arguments],
        env={**os.environ, "PYTHONPATH": search_path},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise UserError(f"{arguments[0]}: not a valid config, see above")
    return RunDir(Path(json.loads(done.stdout)["run_dir"]).resolve())


def share_run(run_dir: RunDir | None, attempt: int | None, device: torch.device) -> Run:
    """Rank 0's run, on every rank."""
    text = b""
    if run_dir is not None:
        spec = run_dir.spec.read_text(encoding="utf-8")
        text = json.dumps({"run_dir": str(run_dir.path), "spec": spec}).encode()
    shared = json.loads(broadcast_bytes(text, device))
    return Run(RunDir(Path(shared["run_dir"])), Spec.from_json(shared["spec"]), attempt)
