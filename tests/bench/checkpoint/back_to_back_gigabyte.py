"""B8: a training that always has a checkpoint in flight, 1 GB."""

from __future__ import annotations

from tests.bench.checkpoint import back_to_back, wide
from tests.bench.place import Place
from tests.bench.rounds import Figure


def measure(place: Place) -> list[Figure]:
    """Figures of a state of 1 GB."""
    return back_to_back.figures(place, wide.GB_1, num_steps=30, rounds=5)
