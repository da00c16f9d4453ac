"""The simulator beside real small runs with the same faults (tests/bench/goodput.py).

The outage after a fault is measured in one run, and gives the simulator's time of the other one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tests.bench.goodput import SAVE_STEPS, STEPS, Trained, train

from .costs import Costs
from .world import World

LIMIT_S = 10_000.0


@dataclass(frozen=True)
class Compared:
    """A real run and its simulation, from the first step to the end."""

    period_s: float  # between two faults
    outage_s: float  # measured in the other runs
    real_s: float
    simulated_s: float
    real_attempts: int
    simulated_attempts: int
    ratio: float


def measure(folder: Path, steps: int = STEPS) -> list[Compared]:
    """Train the runs of B16, and compare each that had faults."""
    return compare(train(steps, folder), steps)


def compare(trained: Mapping[float, Trained], steps: int) -> list[Compared]:
    """`trained`: by the seconds between two faults; 0: the run without one."""
    whole_s = trained[0.0].seconds
    comparisons = []
    for period_s, run in trained.items():
        others = [other for each, other in trained.items() if each not in (0.0, period_s)]
        outages = [f.outage_s for other in others for f in other.faults if f.outage_s is not None]
        if not period_s or not outages:
            continue
        costs = Costs(
            start_s=0.0,
            retry_s=median(outages),
            crash_s=0.0,  # it is a part of the outage
            save_every_s=whole_s / steps * SAVE_STEPS,
            save_stall_s=0.0,
            save_commit_s=0.0,
        )
        world = World(2, [2], costs, work=int(whole_s))
        world.run(LIMIT_S, [(fault.at_s, "crash", 0) for fault in run.faults])
        sums = world.trainings[0].sums
        comparisons.append(
            Compared(
                period_s,
                costs.retry_s,
                run.seconds,
                sums.allocated_s,
                run.attempts,
                sums.attempts,
                sums.allocated_s / run.seconds,
            )
        )
    return comparisons
