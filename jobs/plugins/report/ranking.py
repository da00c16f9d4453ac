"""Ranks runs by a metric of metrics.jsonl."""

import contextlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from ...base import files
from ...base.errors import UserError
from ...contract import records
from ...contract.records.training import Progress
from ...contract.rundir import RunDir
from ...contract.spec import METRIC_MODES, Spec

HELD_OUT = "eval_"
NO_METRICS = ("step", "epoch")  # keys of a line of metrics.jsonl that are no metrics


@dataclass(frozen=True)
class RankedValue:
    """A run with the value of the metric and the step of that; both None where it has none."""

    run_dir: RunDir
    value: float | None
    step: int | None

    def as_json(self) -> dict[str, Any]:
        """Return the run as `report --json` prints it."""
        return {**self.run_dir.names(), "value": self.value, "step": self.step}


def rank(run_dirs: Sequence[RunDir], metric: str) -> list[RankedValue]:
    """Return the runs, best first; last those that have no finite value of the metric.

    A held-out metric counts by its best value, as for the best checkpoint; another one by its last.
    Raises: OSError, RecordError.
    """
    sign = -1.0 if mode(run_dirs, metric) == "max" else 1.0
    ranked = [value_of(run_dir, metric, sign) for run_dir in run_dirs]
    return sorted(ranked, key=lambda each: math.inf if each.value is None else sign * each.value)


def default_metric(run_dirs: Sequence[RunDir]) -> str:
    """Return the metric that chooses the best checkpoints; `auto` as the trainer decides it."""
    for spec in readable_specs(run_dirs):
        if spec.checkpoint.best not in (None, "auto"):
            return str(spec.checkpoint.best)
    return "eval_accuracy" if "eval_accuracy" in names_of(run_dirs) else "eval_loss"


def readable_specs(run_dirs: Sequence[RunDir]) -> Iterator[Spec]:
    """Yield the spec of each run that has one which this version of the kit reads."""
    for run_dir in run_dirs:
        with contextlib.suppress(OSError, UserError):
            yield Spec.read(run_dir.spec)


def mode(run_dirs: Sequence[RunDir], metric: str) -> str:
    """Return the better value, "min" or "max": by checkpoint.best_mode, else by the metric."""
    for spec in readable_specs(run_dirs):
        if spec.checkpoint.best == metric and spec.checkpoint.best_mode != "auto":
            return spec.checkpoint.best_mode
    alike = HELD_OUT + bare(metric)  # train_accuracy as eval_accuracy
    return METRIC_MODES.get(metric, METRIC_MODES.get(alike, "min"))


def value_of(run_dir: RunDir, metric: str, sign: float) -> RankedValue:
    """Return a run with its best or last value of the metric; `sign`: 1 if the smallest is best."""
    best = RankedValue(run_dir, None, None)
    for line in read_metrics(run_dir.metrics):
        value, step = line.get(metric), line.get("step")
        if not is_number(value) or type(step) is not int:
            continue
        is_better = best.value is None or sign * value < sign * best.value
        if is_better or not metric.startswith(HELD_OUT):
            best = RankedValue(run_dir, float(value), step)
    if best.value is None and (now := records.read_leniently(Progress, run_dir.progress)):
        value = (now.metrics or {}).get(metric)  # of a user's script
        if is_number(value):
            best = RankedValue(run_dir, value, now.step)
    return best


def names_of(run_dirs: Sequence[RunDir]) -> list[str]:
    lines = (line for run_dir in run_dirs for line in read_metrics(run_dir.metrics))
    return sorted({name for line in lines for name in line}.difference(NO_METRICS))


def read_metrics(path: Path) -> Iterator[dict[str, object]]:
    """Yield each line of metrics.jsonl that is a JSON object, in order; none without the file."""
    with contextlib.suppress(FileNotFoundError):
        for line in files.lines_of(path):
            with contextlib.suppress(ValueError, RecursionError):
                if isinstance(value := json.loads(line), dict):
                    yield value


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value of a line is a number that a chart can show."""
    return type(value) in (int, float) and abs(value) < 1e300  # type: ignore[arg-type]


def bare(metric: str) -> str:
    """Return the name of a metric without train_ or eval_."""
    return metric.removeprefix("train_").removeprefix(HELD_OUT)


def lines_of(ranked: Sequence[RankedValue], metric: str, names: Mapping[RunDir, str]) -> list[str]:
    """Return the runs in order, with value and step."""
    width = max(map(len, names.values()))
    is_max = mode([each.run_dir for each in ranked], metric) == "max"
    lines = ["", f"{metric}, {'largest' if is_max else 'smallest'} first"]
    for place, each in enumerate(ranked, 1):
        value = "-" if each.value is None else f"{each.value:.6g}"
        step = "" if each.step is None else f"  step {each.step}"
        lines.append(f"{place:>4}  {value:>12}  {names[each.run_dir]:<{width}}{step}".rstrip())
    return lines
