"""The draws of a campaign: a pure function of its seed.

A draw is one run on one site with one or more harms, each at its own moment. The draws are
stratified: every pair of a leading harm and a site is drawn once before any is drawn twice, and
each time with another proctrack and another strategy.
"""

import random
from dataclasses import asdict, dataclass
from typing import Any

from .harms import FINAL, LAST_STEP, LEADS, OTHERS

PROCTRACKS = ("cgroup", "linuxproc", "pgid")
# Not hsdp: three ranks are one group of shards, which is fsdp.
STRATEGIES = ("ddp", "fsdp")
MAX_MORE_HARMS = 2


@dataclass(frozen=True)
class Blow:
    """One harm of a draw, and the optimizer step after which it is done (0: in the start-up)."""

    harm: str
    step: int
    delay_s: float


@dataclass(frozen=True)
class Draw:
    number: int
    proctrack: str
    strategy: str
    site: str
    blows: tuple[Blow, ...]

    def record(self) -> dict[str, Any]:
        return asdict(self)


def draws(number: int, seed: int) -> list[Draw]:
    order = _strata(number, random.Random(f"{seed}/order"), len(LEADS))
    return [
        _draw(index, lead, index // len(LEADS), random.Random(f"{seed}/{index}"))
        for index, lead in enumerate(order)
    ]


def _strata(number: int, dice: random.Random, leads: int) -> list[int]:
    """The numbers of `number` leads, each of them once before any comes twice."""
    order: list[int] = []
    while len(order) < number:
        order += dice.sample(range(leads), leads)
    return order[:number]


def _draw(index: int, lead: int, stratum: int, dice: random.Random) -> Draw:
    harm, site = LEADS[lead]
    more = dice.choices(OTHERS[site], k=dice.choice(range(MAX_MORE_HARMS + 1)))
    steps = sorted(dice.randrange(LAST_STEP) for _ in range(len(more) + 1))
    # A harm that ends the run comes last. Otherwise the leading harm has a random place.
    place = len(more) if harm in FINAL else dice.randrange(len(more) + 1)
    names = [*more[:place], harm, *more[place:]]
    delays = [round(dice.uniform(0, 1), 3) for _ in names]
    blows = tuple(Blow(*blow) for blow in zip(names, steps, delays, strict=True))
    proctrack = PROCTRACKS[(stratum + lead) % len(PROCTRACKS)]
    # 2 strategies and 3 proctracks: in six strata a lead meets each of them on each.
    turn = stratum + lead // len(PROCTRACKS)
    return Draw(index + 1, proctrack, STRATEGIES[turn % len(STRATEGIES)], site, blows)
