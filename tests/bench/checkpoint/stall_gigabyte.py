"""B8: how long a durable checkpoint interrupts the training, 1 GB."""

from __future__ import annotations

from tests.bench.checkpoint import stall, wide
from tests.bench.place import Place
from tests.bench.rounds import Figure

ROUNDS = 4  # a round takes some ten seconds


def measure(place: Place) -> list[Figure]:
    """Figures of a state of 1 GB."""
    return stall.figures(place, wide.GB_1, ROUNDS)
