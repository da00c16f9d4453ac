"""Ratios of medians over interleaved rounds, and a description of the machine."""

import os
import platform
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Literal

Verdict = Literal["yes", "NO", "cannot tell"]

ROUNDS = 7
WARM_UP_ROUNDS = 1
DRY_RUN = "KIT_BENCH_DRY_RUN"  # environment variable: two rounds, and no GPU is needed
GPU_NAME = "nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null || echo no GPU"


@dataclass(frozen=True)
class Target:
    bound: Literal["<=", ">=", "=="]
    value: float

    def is_reached(self, value: float) -> bool:
        if self.bound == "==":
            return value == self.value
        return value <= self.value if self.bound == "<=" else value >= self.value

    def verdict(self, value: float, spread: tuple[float, float] | None) -> Verdict:
        """Whether a figure reaches the target, where its rounds agree on that.

        spread: the quartiles of the rounds. "cannot tell" if the target lies between two of
        them and the figure; it counts as missed.
        """
        is_reached = {self.is_reached(each) for each in (value, *(spread or ()))}
        return "cannot tell" if len(is_reached) > 1 else "yes" if is_reached == {True} else "NO"

    def __str__(self) -> str:
        return f"{self.bound} {self.value:g}"


@dataclass(frozen=True)
class Figure:
    """One line of the table.

    value: None where it could not be measured; `what` has the reason.
    spread: the quartiles of the single rounds; None for a count, which is exact.
    target: None for a figure that is only reported.
    detail: more for the JSON file, such as all times.
    unit: of the value and its target, such as "s"; a ratio or a count has none.
    """

    what: str
    value: float | None
    target: Target | None
    spread: tuple[float, float] | None = None
    detail: dict[str, Any] = field(default_factory=dict)
    unit: str = ""

    def record(self) -> dict[str, Any]:
        verdict = None
        if self.target is not None and self.value is not None:
            verdict = self.target.verdict(self.value, self.spread)
        return {
            "what": self.what,
            "value": self.value,
            "unit": self.unit,
            "spread": self.spread,
            "target": None if self.target is None else str(self.target),
            "verdict": verdict,
            "detail": self.detail,
        }


def sized(real: Any, dry: Any) -> Any:
    """A size of a bench, or that of its dry run."""
    return dry if DRY_RUN in os.environ else real


def interleaved(
    variants: Mapping[str, Callable[[], float]], rounds: int = ROUNDS, warm_up: int = WARM_UP_ROUNDS
) -> dict[str, list[float]]:
    """The seconds that each variant measured, round by round, after some rounds to warm up.

    Every other round runs in reverse order, so that no variant always follows the same one.
    """
    times: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(-warm_up, sized(rounds, 2)):
        names = list(variants) if number % 2 else list(variants)[::-1]
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


def ratio(
    what: str, above: Sequence[float], below: Sequence[float], target: Target | None = None
) -> Figure:
    """The ratio of the medians of two variants' times, with the quartiles of the rounds' own."""
    spread = quartiles([a / b for a, b in zip(above, below, strict=True)])
    detail = {"above_s": list(above), "below_s": list(below)}
    return Figure(what, median(above) / median(below), target, spread, detail)


def seconds(
    what: str, times: Sequence[float], target: Target | None = None, **detail: Any
) -> Figure:
    """The median of times in seconds, with their quartiles."""
    detail = {"times_s": list(times), **detail}
    return Figure(what, median(times), target, quartiles(times), detail, "s")


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """The ends of the middle half."""
    low, _, high = quantiles(values, n=4)
    return low, high


def milliseconds(times: Sequence[float], per: int = 1) -> str:
    """The median of times as text; each time is for this many steps."""
    return f"{1e3 * median(times) / per:.3g} ms"


def machine() -> dict[str, Any]:
    """The conditions of the figures: processor, versions, load of the machine."""
    return {
        "cpu": _cpu(),
        "gpu": subprocess.getoutput(GPU_NAME),
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
