"""Draws values at random for the points of a sweep; a seed gives the same values anywhere."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

KINDS = ("uniform", "log_uniform", "int_uniform", "choice")
DIGITS = 4  # of a drawn number: enough to tell points apart, few enough to read


class DrawError(ValueError):
    """What a user wrote describes no values to draw; the text is for the message."""


@dataclass(frozen=True)
class Distribution:
    """From which values to draw: `values` are the two bounds, or all choices."""

    kind: str
    values: Sequence[Any]


def distribution(written: Any) -> Distribution:
    """Return the distribution in a value of the YAML file, such as `{uniform: [0, 0.1]}`.

    Raises: DrawError.
    """
    if not isinstance(written, dict) or len(written) != 1 or next(iter(written)) not in KINDS:
        raise DrawError(f"needs one of {', '.join(KINDS)}, such as {{uniform: [0, 0.1]}}")
    ((kind, values),) = written.items()
    if not isinstance(values, list) or not values:
        raise DrawError(f"{kind} needs a list")
    if kind != "choice":
        _check_bounds(kind, values)
    return Distribution(kind, values)


def _check_bounds(kind: str, values: list[Any]) -> None:
    wanted = int if kind == "int_uniform" else (int, float)
    if len(values) != 2 or not all(
        isinstance(value, wanted) and not isinstance(value, bool) and math.isfinite(value)
        for value in values
    ):
        numbers = "whole numbers" if kind == "int_uniform" else "numbers"
        raise DrawError(f"{kind} needs two {numbers}, the lowest and the highest value")
    low, high = values
    if low >= high:
        raise DrawError(f"{kind} needs the lower value first: {low} is not below {high}")
    if kind == "log_uniform" and low <= 0:
        raise DrawError(f"log_uniform needs values above 0, not {low}")


def draw(distribution: Distribution, seed: int, key: str) -> Iterator[Any]:
    """Yield values without an end. Each key has its own sequence, whatever other keys there are.

    Only `random()` is used: Python promises that its sequence stays the same in later versions.
    Source: docs.python.org/3/library/random.html, Notes on Reproducibility.
    """
    numbers = random.Random(f"{seed} {key}")
    while True:
        yield _value(distribution, numbers.random())


def _value(distribution: Distribution, number: float) -> Any:
    """Return the value for a number from 0 up to but not 1."""
    if distribution.kind == "choice":
        return distribution.values[int(number * len(distribution.values))]
    low, high = distribution.values
    if distribution.kind == "int_uniform":
        return low + int(number * (high - low + 1))
    if distribution.kind == "log_uniform":
        value = math.exp(math.log(low) + number * (math.log(high) - math.log(low)))
    else:
        value = low + number * (high - low)
    return min(max(float(f"{value:.{DIGITS}g}"), low), high)
