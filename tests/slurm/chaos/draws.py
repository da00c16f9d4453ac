"""The draws of a campaign: a pure function of its seed.

A draw is one run on one site with one or more harms, each at its own moment. Every pair of a
leading harm and a site is drawn once before any is drawn twice.
"""

import random
from dataclasses import dataclass

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


def draws(number: int, seed: int) -> list[Draw]:
    dice, order = random.Random(f"{seed}/order"), list[tuple[str, str]]()
    while len(order) < number:
        order += dice.sample(LEADS, len(LEADS))
    return [
        _draw(index, *lead, random.Random(f"{seed}/{index}"))
        for index, lead in enumerate(order[:number], 1)
    ]


def _draw(number: int, harm: str, site: str, dice: random.Random) -> Draw:
    more = dice.choices(OTHERS[site], k=dice.choice(range(MAX_MORE_HARMS + 1)))
    steps = sorted(dice.randrange(LAST_STEP) for _ in range(len(more) + 1))
    # A harm that ends the run comes last. Otherwise the leading harm has a random place.
    place = len(more) if harm in FINAL else dice.randrange(len(more) + 1)
    names = [*more[:place], harm, *more[place:]]
    delays = [round(dice.uniform(0, 1), 3) for _ in names]
    blows = tuple(Blow(*blow) for blow in zip(names, steps, delays, strict=True))
    return Draw(number, dice.choice(PROCTRACKS), dice.choice(STRATEGIES), site, blows)
