"""B16: goodput under faults: small runs that lose a rank or an agent at fixed times.

One run that no fault reaches and one for each period train at the same time, so that other work on
the machine disturbs all of them alike. A step sleeps for most of its time: the runs hardly compete.
Goodput is the time from the first step to the end in the run without a fault, divided by that of
the run with faults. A local run waits in no queue.
"""

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from slurm_job_kit.jobs.base.procfs import parent_of
from slurm_job_kit.jobs.contract import records
from slurm_job_kit.jobs.contract.records.ended import read_attempts
from slurm_job_kit.jobs.contract.records.training import Event, Result, read_events
from tests.bench.rounds import Figure, Target
from tests.bench.start.local_run import LocalRun, wait_for

TARGETS = {60.0: Target(">=", 0.92), 120.0: Target(">=", 0.95)}  # by the seconds between faults
STEPS, SAVE_STEPS, PAUSE_S = 3000, 20, 0.1
POLL_S = 0.02
SPEC = {
    "train": {
        "model": "tests.slurm.paced:Paced",
        "dataset": "digits",
        "max_steps": STEPS,
        "micro_batch_size": 8,
        "eval_every_epochs": None,
    },
    "checkpoint": {"every_epochs": None, "every_steps": SAVE_STEPS},
    "log": {"every_steps": 1000},
}


@dataclass(frozen=True)
class Fault:
    """A process that was killed, and what followed; times in seconds since the first step."""

    at_s: float
    victim: str  # rank or agent
    outage_s: float | None = None  # from the kill to the first new step; None: no step followed
    redone_steps: int = 0


@dataclass(frozen=True)
class Trained:
    """A run that has ended: its seconds from the first step to the end, its faults, its bits."""

    seconds: float
    attempts: int
    faults: tuple[Fault, ...]
    weights_sha256: str | None


class DisturbedRun(LocalRun):
    def __init__(self, folder: Path, pace: Path) -> None:
        self._kills: list[tuple[float, str]] = []
        super().__init__(folder, {**SPEC, "launch": {"env": {"PACE_FILE": str(pace)}}})

    def all_events(self, name: str, rank: int = 0) -> list[Event]:
        path = self.dir.timeline(f"rank-{rank:05d}")
        return [event for event in read_events(path) if event.event == name]

    def begin(self) -> float:
        """Wait for the first step; returns its time. Raises: TimeoutError, RuntimeError."""
        _, second = wait_for(lambda: self.ranks_with("first_step", 1), "no first step")
        return float(second["first_step"]["t"])

    def kill(self, victim: str) -> None:
        """Kill rank 1 or the agent of its node; nothing where it does not run."""
        started = self.all_events("spawn", 1)
        pid = started[-1].pid if started else None
        if victim == "agent" and pid is not None:
            torchrun = parent_of(pid)
            pid = None if torchrun is None else parent_of(torchrun)
        if pid is not None and pid > 1:
            with contextlib.suppress(ProcessLookupError):  # the run has ended just now
                os.kill(pid, signal.SIGKILL)
                self._kills.append((time.time(), victim))

    def end(self) -> Trained:
        """Wait for the end of the run; returns what happened in it. Raises: RuntimeError."""
        self.wait()
        first, ended = self.all_events("first_step"), self.all_events("completed")[-1]
        result = records.read(Result, self.dir.result)
        assert result is not None
        return Trained(
            seconds=ended.t - first[0].t,
            attempts=result.attempts or 0,
            faults=tuple(self._followed(first)),
            weights_sha256=result.weights_sha256,
        )

    def _followed(self, first_steps: Sequence[Event]) -> Iterator[Fault]:
        ended = {each.attempt: each for each in read_attempts(self.dir)}
        for at, victim in self._kills:
            after = next((each for each in first_steps if each.t > at), None)
            fault = Fault(at - first_steps[0].t, victim)
            if after is not None and after.step is not None and after.attempt is not None:
                last = ended[after.attempt - 1].last_step or 0
                fault = Fault(fault.at_s, victim, after.t - at, max(0, last - after.step + 1))
            yield fault


def disturb(runs: dict[float, DisturbedRun]) -> None:
    """Kill a rank or an agent of each run every so many seconds since its first step."""
    begun = {period_s: run.begin() for period_s, run in runs.items()}
    counts = {period_s: itertools.count(1) for period_s in runs}
    due = {period_s: begun[period_s] + period_s for period_s in runs}
    while alive := [each for each, run in runs.items() if run.process.poll() is None]:
        for period_s in alive:
            if time.time() >= due[period_s]:
                number = next(counts[period_s])
                runs[period_s].kill("agent" if number % 2 == 0 else "rank")
                due[period_s] = begun[period_s] + (number + 1) * period_s
        time.sleep(POLL_S)


def closed_form(trained: Trained, period_s: float, step_s: float) -> float:
    """The goodput with this run's median outage, and half of the save interval lost per fault."""
    outages = [each.outage_s for each in trained.faults if each.outage_s is not None]
    lost_s = median(outages) + step_s * SAVE_STEPS / 2 if outages else 0.0
    return 1 - lost_s / period_s


def train(folder: Path) -> dict[float, Trained]:
    """The ended runs by the seconds between two faults; 0: without a fault."""
    pace = folder / "pace"
    pace.write_text(str(PAUSE_S), encoding="utf-8")
    with ExitStack() as stack:
        started = {
            period_s: stack.enter_context(DisturbedRun(folder / f"each-{period_s:.0f}-s", pace))
            for period_s in (0.0, *TARGETS)
        }
        for run in started.values():
            run.begin()
        disturb({period_s: run for period_s, run in started.items() if period_s})
        return {period_s: run.end() for period_s, run in started.items()}


def measure(folder: Path) -> list[Figure]:
    """The goodput for each period beside its closed form, and whether the bits are equal.

    Takes the time of the steps and of the faults, about 8 minutes.
    """
    trained = train(folder)
    whole = trained[0.0]
    figure_list = []
    for period_s, target in TARGETS.items():
        run = trained[period_s]
        expected = closed_form(run, period_s, whole.seconds / STEPS)
        what = f"a fault per {period_s:.0f} s: useful / wall (closed form {expected:.3f})"
        detail = {"closed_form": expected, "run": asdict(run), "whole": asdict(whole)}
        figure_list.append(Figure(what, whole.seconds / run.seconds, target, detail=detail))
    is_equal = {run.weights_sha256 for run in trained.values()} == {whole.weights_sha256}
    figure_list.append(
        Figure("runs whose weights differ in a bit", float(not is_equal), Target("==", 0))
    )
    return figure_list
