"""Ratios of medians over interleaved rounds, and a description of the machine."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Literal

ROUNDS = 9
WARM_UP_ROUNDS = 1


@dataclass(frozen=True)
class Target:
    """The target of a figure."""

    bound: Literal["<=", ">=", "=="]
    value: float

    def is_reached(self, value: float) -> bool:
        """Whether a figure reaches the target."""
        if self.bound == "==":
            return value == self.value
        return value <= self.value if self.bound == "<=" else value >= self.value

    def __str__(self) -> str:
        return f"{self.bound} {self.value:g}"


@dataclass(frozen=True)
class Figure:
    """One line of the table.

    spread: the quartiles of the single rounds; None for a count, which is exact.
    target: None for a figure that is only reported.
    detail: more for the JSON file, such as all times.
    """

    what: str
    value: float
    target: Target | None
    spread: tuple[float, float] | None = None
    detail: dict[str, Any] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """The figure as a JSON value."""
        target = None if self.target is None else str(self.target)
        is_reached = None if self.target is None else self.target.is_reached(self.value)
        return {
            "what": self.what,
            "value": self.value,
            "spread": self.spread,
            "target": target,
            "is_reached": is_reached,
            "detail": self.detail,
        }


def interleaved(
    variants: dict[str, Callable[[], float]], rounds: int = ROUNDS
) -> dict[str, list[float]]:
    """The seconds that each variant measured, round by round, after a round to warm up.

    Every other round runs in reverse order, so that no variant always follows the same one.
    """
    times: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(-WARM_UP_ROUNDS, rounds):
        names = list(variants) if number % 2 else list(reversed(variants))
        for name in names:
            took_s = variants[name]()
            if number >= 0:
                times[name].append(took_s)
    return times


def timed(work: Callable[[], object]) -> float:
    """The seconds that `work` takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def ratio(what: str, above: Sequence[float], below: Sequence[float], target: Target) -> Figure:
    """The ratio of the medians of two variants' times, with the quartiles of the rounds' own."""
    low, _, high = quantiles([a / b for a, b in zip(above, below, strict=True)], n=4)
    detail = {"above_s": list(above), "below_s": list(below)}
    return Figure(what, median(above) / median(below), target, (low, high), detail)


def milliseconds(times: Sequence[float], per: int = 1) -> str:
    """The median of times as text; each time is for this many steps."""
    return f"{1e3 * median(times) / per:.3g} ms"


def machine() -> dict[str, Any]:
    """The conditions of the figures: processor, versions, load of the machine."""
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "torch": version("torch"),
        "kernel": platform.release(),
        "load": load(),
    }


def load() -> float:
    """Number of processes that ran or waited for a CPU, on average over the last minute."""
    return round(os.getloadavg()[0], 2)


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
