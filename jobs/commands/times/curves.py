"""Reads the curves of a run, thinned out: its metrics, throughput and memory by step."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from ...records.training import read_metrics
from .history import RunHistory

# A plot is 400 pixels wide. A band of so many points has 20 kB of SVG.
MAX_GROUPS = 400
# Keys of a line of metrics.jsonl that are no metrics.
NO_METRICS = ("step", "epoch")


class CurvePoint(NamedTuple):
    """Neighbouring values of a curve: their mean, the smallest and the largest, up to step `x`."""

    x: float
    mean: float
    low: float
    high: float


class ThinnedCurve:
    """A curve of at most MAX_GROUPS points, whatever number of values is added.

    Each point is a group of neighbouring values; its smallest and largest value stay, so that no
    peak is lost. Once there are too many groups, each two become one.
    """

    def __init__(self) -> None:
        self._groups: list[list[float]] = []  # [last x, sum, number, smallest, largest]
        self._size = 1  # values of a whole group
        self.num_not_finite = 0

    def add(self, x: float, y: float) -> None:
        """Add the next value."""
        if not (math.isfinite(x) and math.isfinite(y)):
            self.num_not_finite += 1
            return
        if self._groups and self._groups[-1][2] < self._size:
            last = self._groups[-1]
            last[0] = x
            last[1] += y
            last[2] += 1
            if y < last[3]:
                last[3] = y
            elif y > last[4]:
                last[4] = y
            return
        if len(self._groups) == MAX_GROUPS:
            pairs = zip(self._groups[::2], self._groups[1::2], strict=True)
            self._groups = [join_groups(*pair) for pair in pairs]
            self._size *= 2
        self._groups.append([x, y, 1, y, y])

    def points(self) -> list[CurvePoint]:
        """Return the points of the curve, in their order."""
        return [CurvePoint(x, total / num, low, high) for x, total, num, low, high in self._groups]


def join_groups(a: list[float], b: list[float]) -> list[float]:
    """Return two groups as one."""
    return [b[0], a[1] + b[1], a[2] + b[2], min(a[3], b[3]), max(a[4], b[4])]


@dataclass(frozen=True)
class Curves:
    """What a run has by step. metrics: each metric of metrics.jsonl by its name."""

    metrics: dict[str, ThinnedCurve] = field(default_factory=dict)
    throughput: ThinnedCurve = field(default_factory=ThinnedCurve)  # samples/s
    memory: ThinnedCurve = field(default_factory=ThinnedCurve)  # MiB


def read(history: RunHistory) -> Curves:
    """Return the curves of a run. Raises: OSError."""
    curves = Curves()
    add_metrics(curves, read_metrics(history.run_dir.metrics))
    for attempt in history.attempts:
        for event in attempt.events:
            if event.step is None:
                continue
            if event.samples_per_s is not None:
                curves.throughput.add(event.step, event.samples_per_s)
            if event.memory_mib is not None:
                curves.memory.add(event.step, event.memory_mib)
    return curves


def add_metrics(all_curves: Curves, lines: Iterable[dict[str, object]]) -> None:
    """Add the numbers of each line of metrics.jsonl at its step."""
    curves = all_curves.metrics
    for line in lines:
        step = line.get("step")
        if type(step) is not int:
            continue
        for name, value in line.items():
            if name not in NO_METRICS and type(value) in (float, int):
                curve = curves.get(name)
                if curve is None:
                    curve = curves[name] = ThinnedCurve()
                curve.add(step, value)  # type: ignore[arg-type]
