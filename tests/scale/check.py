"""The simulator beside real small runs with the same faults (tests/bench/goodput.py).

The outage after a fault is measured in one run, and gives the simulator's time of the other one.
"""

from pathlib import Path
from statistics import median
from typing import Any

from tests.bench.goodput import SAVE_STEPS, STEPS, Trained, train

from .costs import Costs
from .world import World

LIMIT_S = 10_000.0


def measure(folder: Path) -> list[dict[str, Any]]:
    """Train the runs of B16, and compare each that had faults, from the first step to the end."""
    folder.mkdir()
    trained = train(folder)
    return [
        _compared(period_s, trained)
        for period_s, run in trained.items()
        if period_s and _outages(period_s, trained)
    ]


def _outages(period_s: float, trained: dict[float, Trained]) -> list[float]:
    """Seconds without a step after each fault of the runs with another period."""
    others = [run for each, run in trained.items() if each not in (0.0, period_s)]
    return [f.outage_s for run in others for f in run.faults if f.outage_s is not None]


def _compared(period_s: float, trained: dict[float, Trained]) -> dict[str, Any]:
    run, whole_s = trained[period_s], trained[0.0].seconds
    costs = Costs(
        start_s=0.0,
        retry_s=median(_outages(period_s, trained)),
        crash_s=0.0,  # it is a part of the outage
        save_every_s=whole_s / STEPS * SAVE_STEPS,
        save_stall_s=0.0,
        save_commit_s=0.0,
    )
    world = World(2, [2], costs, work=int(whole_s))
    world.run(LIMIT_S, [(fault.at_s, "crash", 0) for fault in run.faults])
    sums = world.trainings[0].sums
    return {
        "period_s": period_s,
        "outage_s": costs.retry_s,
        "real_s": run.seconds,
        "simulated_s": sums.allocated_s,
        "real_attempts": run.attempts,
        "simulated_attempts": sums.attempts,
        "ratio": sums.allocated_s / run.seconds,
    }
