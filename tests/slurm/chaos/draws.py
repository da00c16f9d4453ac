"""What the campaign does in each of its draws: a pure function of its seed.

A draw is one run and the harms that come over it, each at a moment of its own. It is stratified:
every harm comes once before any comes twice, and so does every proctrack with it as far as N goes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

PROCTRACKS = ("cgroup", "linuxproc", "pgid")
MAX_MORE_HARMS = 2


@dataclass(frozen=True)
class Blow:
    """One harm of a draw, and the optimizer step behind which it comes (0: in the start-up)."""

    harm: str
    step: int
    delay_s: float


@dataclass(frozen=True)
class Draw:
    """One run of the campaign."""

    number: int
    proctrack: str
    blows: tuple[Blow, ...]

    def record(self) -> dict[str, Any]:
        """The draw as a JSON value."""
        return asdict(self)


def draws(
    number: int, seed: int, harms: Sequence[str], final: Sequence[str], last_step: int
) -> list[Draw]:
    """The campaign of `number` draws. `final`: harms after which no other one can come."""
    order = _strata(number, random.Random(f"{seed}/order"), harms)
    return [
        _draw(index, harm, random.Random(f"{seed}/{index}"), harms, final, last_step)
        for index, harm in enumerate(order, 1)
    ]


def _strata(number: int, dice: random.Random, harms: Sequence[str]) -> list[str]:
    """`number` harms, each of them once before any comes twice."""
    order: list[str] = []
    while len(order) < number:
        order += dice.sample(harms, len(harms))
    return order[:number]


def _draw(
    index: int,
    harm: str,
    dice: random.Random,
    harms: Sequence[str],
    final: Sequence[str],
    last_step: int,
) -> Draw:
    others = [name for name in harms if name not in final]
    more = dice.choices(others, k=dice.choice(range(MAX_MORE_HARMS + 1)))
    steps = sorted(dice.randrange(last_step) for _ in range(len(more) + 1))
    # What ends the run for good comes last; among the others the drawn one has a place by chance.
    place = len(more) if harm in final else dice.randrange(len(more) + 1)
    names = [*more[:place], harm, *more[place:]]
    delays = [round(dice.uniform(0, 1), 3) for _ in names]
    blows = tuple(Blow(*blow) for blow in zip(names, steps, delays, strict=True))
    return Draw(index, PROCTRACKS[(index - 1) % len(PROCTRACKS)], blows)
