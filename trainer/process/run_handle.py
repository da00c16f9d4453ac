"""This process as a rank, and its run and attempt: rank 0 finds the run and broadcasts it.

The broadcast uses the process group, so a rank on a machine without the shared file system needs
no file of the run directory.
"""

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ..contract import AttemptDir, AttemptPlan, RunDir, Spec, Train, files, installation, records
from ..errors import HINT, UserError
from .context import DistributedContext, broadcast_bytes
from .events import Events
from .stop import StopSignal
from .watcher import Pulse, Watcher


class RankProcess:
    """This rank. When it fails, `run` reads from it where to write the error record."""

    def __init__(self, stop: StopSignal, started: float, pulse: Pulse) -> None:
        self.stop, self.pulse = stop, pulse
        self.attempt = int(os.environ["KIT_ATTEMPT"]) if "KIT_ATTEMPT" in os.environ else None
        self.attempt_dir: AttemptDir | None = None
        self.distributed = DistributedContext.from_env(os.environ)
        self.events = Events(self.distributed.rank)
        self.events.event("start", t=round(started, 3), host=self.distributed.host, pid=os.getpid())
        self.events.event("import")

    def open(self, run_dir: RunDir, attempt: int) -> None:
        """Write to a run directory from now on."""
        self.events.open(run_dir, attempt)
        self.attempt_dir = run_dir.attempt(attempt)


@dataclass(frozen=True)
class RunHandle:
    """A run: its directory, its frozen spec, and the number of this attempt.

    job_id: the job (or local process) for which the attempt was opened.
    code_digest: names of the frozen code and the kit; None where they are not known.
    """

    dir: RunDir
    spec: Spec
    attempt: int
    job_id: str | None = None
    code_digest: str | None = None


@dataclass(frozen=True)
class RankContext:
    """A run, this rank's place in it, its device, its timeline, and what watches it."""

    run: RunHandle
    distributed: DistributedContext
    device: torch.device
    events: Events
    pulse: Pulse = field(default_factory=Pulse)
    watchers: Sequence[Watcher] = ()

    @property
    def train(self) -> Train:
        return self.run.spec.train

    @property
    def is_deterministic(self) -> bool:
        """Whether only deterministic operators are used; auto means on the CPU."""
        requested = self.train.deterministic
        return self.device.type == "cpu" if requested == "auto" else requested


def is_run_dir(path: Path) -> bool:
    """Return whether a path is a run directory, which has a frozen spec."""
    spec = RunDir(path).spec
    return spec.is_file() or files.is_file(spec)


def find_run(arguments: list[str], attempt: int | None) -> RunHandle:
    """Return the run of the command line; opens an attempt where no agent started this rank.

    Raises: UserError (wrong arguments, a run that is complete or cannot be started).
    """
    if len(arguments) != 1 or not is_run_dir(Path(arguments[0])):
        freeze = "jobs freeze CONFIG (kit freeze CONFIG) prints the directory of a new run"
        raise UserError(f"usage: torchrun ... -m slurm_job_kit.trainer RUN_DIR{HINT}{freeze}")
    run_dir = RunDir(Path(arguments[0]).resolve())
    spec = Spec.read(run_dir.spec)
    if attempt is None:  # this process owns it, as the batch script does for a Slurm job
        opened = by_hand("open", run_dir)
        if opened.returncode != 0:
            raise UserError("cannot start; see the error above")
        if not opened.stdout:
            raise UserError(f"{run_dir.path} is complete: nothing to do")
        attempt = int(opened.stdout)
    plan = records.read(AttemptPlan, run_dir.attempt(attempt).plan)
    known = () if plan is None else (plan.job_id, plan.code_digest)
    return RunHandle(run_dir, spec, attempt, *known)


def by_hand(command: str, run_dir: RunDir, *more: str) -> subprocess.CompletedProcess[str]:
    """Run a command of jobs.attempt for this process, in one of its own to keep ranks small."""
    words = (command, str(run_dir.path), str(os.getpid()), *more)
    argv = installation.python_m("jobs.attempt", *words)
    return subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False)


def share_run(handle: RunHandle | None, device: torch.device) -> RunHandle:
    """Return rank 0's run on every rank; the `handle` of other ranks is ignored.

    All ranks call it: rank 0 alone reads the spec, which a cache of another node may have older.
    """
    text = b""
    if handle is not None:
        values = (handle.attempt, handle.job_id, handle.code_digest)
        text = json.dumps([str(handle.dir.path), handle.spec.to_json(), *values]).encode()
    run_dir, spec, *values = json.loads(broadcast_bytes(text, device))
    return RunHandle(RunDir(Path(run_dir)), Spec.from_json(spec), *values)
