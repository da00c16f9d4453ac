"""B16: goodput under faults: small runs that lose a rank or an agent at fixed times.

    python -m tests.bench.goodput [--steps 3000] [--json PATH]

One run that no fault reaches and one for each period train at the same time, so that other work on
the machine disturbs all of them alike. A step sleeps for most of its time: the runs hardly compete.
Goodput is the time from the first step to the end in the run without a fault, divided by that of
the run with faults. A local run waits in no queue.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from slurm_job_kit.jobs import records
from slurm_job_kit.jobs.procfs import parent_of
from slurm_job_kit.jobs.records.ended import read_attempts
from slurm_job_kit.jobs.records.nodes import AttemptPlan
from slurm_job_kit.jobs.records.training import Event, Result, read_events
from slurm_job_kit.jobs.rundir import RunDir, write_json
from tests.bench import rounds
from tests.bench.rounds import Figure, Target

REPOSITORY = Path(__file__).resolve().parents[2]
TARGETS = {60.0: Target(">=", 0.92), 120.0: Target(">=", 0.95)}  # by the seconds between faults
STEPS, SAVE_STEPS, PAUSE_S = 3000, 20, 0.1
START_LIMIT_S, POLL_S = 120.0, 0.02
SPEC = f"""
name: {{name}}
slurm: {{{{nodes: 2}}}}
launch: {{{{env: {{{{PACE_FILE: {{pace}}}}}}}}}}
train: {{{{model: "tests.slurm.paced:Paced", dataset: digits, max_steps: {{steps}},
  micro_batch_size: 8, eval_every_epochs: null}}}}
checkpoint: {{{{every_epochs: null, every_steps: {SAVE_STEPS}}}}}
log: {{{{every_steps: 1000}}}}
"""


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
    start_s: float  # from the opening of the first attempt to its first step
    attempts: int
    faults: tuple[Fault, ...]
    weights_sha256: str | None


class LocalRun:
    """A run of the local submitter in a separate runs root, which this process can disturb."""

    def __init__(self, folder: Path, name: str, steps: int) -> None:
        pace, config = folder / "pace", folder / f"{name}.yaml"
        pace.write_text(str(PAUSE_S), encoding="utf-8")
        config.write_text(SPEC.format(name=name, pace=pace, steps=steps), encoding="utf-8")
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("KIT_", "SLURM_"))}
        self._latest, self._kills = folder / "runs" / name / "latest", list[tuple[float, str]]()
        with open(folder / f"{name}.log", "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "jobs", "submit", config, "--cluster=local", "--no-check"],
                cwd=REPOSITORY,
                env=inherited | {"KIT_RUNS": str(folder / "runs"), "OMP_NUM_THREADS": "1"},
                stdout=log,
                stderr=log,
            )

    @property
    def run_dir(self) -> RunDir:
        """The run directory; only after the submit has made it."""
        return RunDir(self._latest.resolve())

    def events(self, name: str, rank: int = 0) -> list[Event]:
        """A rank's timeline events of a name, of all attempts."""
        path = self.run_dir.timeline(f"rank-{rank:05d}")
        return [event for event in read_events(path) if event.event == name]

    def begin(self) -> float:
        """Wait for the first step; returns its time. Raises: TimeoutError."""
        deadline = time.monotonic() + START_LIMIT_S
        while not (first := self.events("first_step", 1)):
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise TimeoutError(f"no first step below {self._latest}")
            time.sleep(POLL_S)
        return first[0].t

    def kill(self, victim: str) -> None:
        """Kill rank 1 or the agent of its node; nothing where it does not run."""
        started = self.events("spawn", 1)
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
        if self.process.wait() != 0:
            raise RuntimeError(f"{self._latest} ended with {self.process.returncode}")
        first, ended = self.events("first_step"), self.events("completed")[-1]
        plan = records.read(AttemptPlan, self.run_dir.attempt(1).plan)
        result = records.read(Result, self.run_dir.result)
        assert plan is not None and result is not None
        return Trained(
            seconds=ended.t - first[0].t,
            start_s=first[0].t - plan.start,
            attempts=result.attempts or 0,
            faults=tuple(self._followed(first)),
            weights_sha256=result.weights_sha256,
        )

    def _followed(self, first_steps: Sequence[Event]) -> Iterator[Fault]:
        ended = {each.attempt: each for each in read_attempts(self.run_dir)}
        for at, victim in self._kills:
            after = next((each for each in first_steps if each.t > at), None)
            fault = Fault(at - first_steps[0].t, victim)
            if after is not None and after.step is not None and after.attempt is not None:
                last = ended[after.attempt - 1].last_step or 0
                fault = Fault(fault.at_s, victim, after.t - at, max(0, last - after.step + 1))
            yield fault


def disturb(runs: dict[float, LocalRun]) -> None:
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


def train(steps: int, folder: Path) -> dict[float, Trained]:
    """The ended runs by the seconds between two faults; 0: without a fault."""
    periods = {0.0: "whole", **{period_s: f"each-{period_s:.0f}-s" for period_s in TARGETS}}
    started = {period_s: LocalRun(folder, name, steps) for period_s, name in periods.items()}
    try:
        for run in started.values():
            run.begin()
        disturb({period_s: run for period_s, run in started.items() if period_s})
        return {period_s: run.end() for period_s, run in started.items()}
    finally:
        for run in started.values():
            if run.process.poll() is None:
                run.process.terminate()
                run.process.wait()


def figures(trained: dict[float, Trained], steps: int) -> list[Figure]:
    """The goodput for each period beside its closed form, and whether the bits are equal."""
    whole = trained[0.0]
    figure_list = []
    for period_s, target in TARGETS.items():
        run = trained[period_s]
        expected = closed_form(run, period_s, whole.seconds / steps)
        what = f"a fault per {period_s:.0f} s: useful / wall (closed form {expected:.3f})"
        detail = {"closed_form": expected, "run": asdict(run), "whole": asdict(whole)}
        figure_list.append(Figure(what, whole.seconds / run.seconds, target, detail=detail))
    is_equal = {run.weights_sha256 for run in trained.values()} == {whole.weights_sha256}
    figure_list.append(
        Figure("runs whose weights differ in a bit", float(not is_equal), Target("==", 0))
    )
    return figure_list


def measure(folder: Path, steps: int = STEPS) -> list[Figure]:
    """The figures of B16; takes the time of `steps` steps and of the faults, about 8 minutes."""
    return figures(train(steps, folder), steps)


def main(arguments: list[str]) -> int:
    """Print the figures; write them to a file."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.goodput", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--json", type=Path, default=Path("runs/goodput.json"), metavar="PATH")
    asked = parser.parse_args(arguments)
    machine = rounds.machine()
    with tempfile.TemporaryDirectory(prefix="goodput-") as folder:
        figure_records: list[dict[str, Any]] = [
            each.record() for each in measure(Path(folder), asked.steps)
        ]
    for each in figure_records:
        print(f"{each['value']:.3f}  {each['what']}  target {each['target']}")
    asked.json.parent.mkdir(parents=True, exist_ok=True)
    write_json(
        asked.json, {"machine": machine, "figures": figure_records, "load_after": rounds.load()}
    )
    print(json.dumps({"all times": str(asked.json)}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
