"""This rank of a bench; it runs the real trainer without starting a process for each run."""

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from slurm_job_kit.jobs.base.files import read_jsonl
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.contract.spec import Spec
from slurm_job_kit.trainer.hooks import callbacks
from slurm_job_kit.trainer.process.context import DistributedContext
from slurm_job_kit.trainer.process.events import Events
from slurm_job_kit.trainer.process.run_handle import RankContext, RunHandle
from slurm_job_kit.trainer.process.step_agreement import StepAgreement
from slurm_job_kit.trainer.process.stop import StopSignal
from slurm_job_kit.trainer.process.watcher import Pulse
from slurm_job_kit.trainer.training.loop import Loop
from slurm_job_kit.trainer.training.run import prepare
from tests.core.run_files import write_json


def wait_for_device() -> None:
    """Wait until the GPU has done its work, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class StepClock:
    """The seconds from the beginning of one step to that of a later one; steps count from 0.

    Without a later one: to the end of the training, with its last commit.
    """

    def __init__(self, first: int, last: int | None = None) -> None:
        self._first, self._last = first, last
        self._started = self.seconds = 0.0

    def begin(self, step: int) -> None:
        if step in (self._first, self._last):
            wait_for_device()
        if step == self._first:
            self._started = time.perf_counter()
        elif step == self._last:
            self.seconds = time.perf_counter() - self._started

    def end(self) -> None:
        if self._last is None:
            self.seconds = time.perf_counter() - self._started


class ClockedPulse(Pulse):
    """The pulse of a rank whose steps are measured. A watchdog ends where `is_over`."""

    clock: StepClock | None = None
    is_over = False

    def __getattribute__(self, name: str) -> Any:
        if name == "now" and self.is_over:
            raise SystemExit  # ends the thread alone
        return super().__getattribute__(name)

    def beat(self, what: str, step: int | None = None) -> None:
        super().beat(what, step)
        if what == "batch" and self.clock is not None and step is not None:
            self.clock.begin(step)


def saves_of(run: RunDir) -> list[dict[str, Any]]:
    """The events of the checkpoints that a run has committed: `step`, `seconds`, `stall_s`."""
    return [each for each in read_jsonl(run.timeline("rank-00000")) if each["event"] == "save"]


@dataclass
class Place:
    """The rank and the device of a bench, and a folder for its runs."""

    distributed: DistributedContext
    device: torch.device
    folder: Path
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def context(self, spec: Spec, run: RunDir | None = None, attempt: int = 1) -> RankContext:
        """An attempt of a run, by default of a new one; the same on all ranks."""
        run = run or RunDir(self.folder / f"run-{next(self._numbers)}")
        if self.distributed.is_first:
            run.attempt(attempt).path.mkdir(parents=True, exist_ok=True)
            write_json(run.owner, {"attempt": attempt})
        dist.barrier()
        events = Events(self.distributed.rank)
        events.open(run, attempt)
        handle = RunHandle(run, spec, attempt)
        return RankContext(handle, self.distributed, self.device, events, ClockedPulse(), [])

    def train(self, spec: Spec, clock: StepClock) -> RunDir:
        """Train a new run to its end, and measure the time; returns the run."""
        context = self.context(spec)
        status = self.run(context, prepare(context), clock)
        assert status == "completed", status
        return context.run.dir

    def seconds(self, spec: Spec, first: int, last: int | None = None) -> float:
        """Train a new run to its end; the seconds between two steps of it, see StepClock."""
        clock = StepClock(first, last)
        self.train(spec, clock)
        return clock.seconds

    def run(self, context: RankContext, loop: Loop, clock: StepClock) -> str:
        """Train a prepared run as `trainer.training.run` does; returns how it ended."""
        interval_steps = context.run.spec.launch.stop_check_steps
        agreement = StepAgreement(StopSignal(), interval_steps, context.device)
        pulse, of_plugins = context.pulse, context.watchers
        assert isinstance(pulse, ClockedPulse) and isinstance(of_plugins, list)
        pulse.clock = clock
        for each in callbacks(pulse):  # not before: a watchdog would take the time until here
            of_plugins.append(each)
            each.opened(context)
            each.restored(loop)
        status = loop.run(agreement)
        clock.end()
        pulse.is_over = True
        loop.close()
        dist.barrier()
        return status
