"""The points of a sweep: which runs they are, and by which keys they differ."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SweepPoint:
    """One run of a sweep. overrides: the `KEY=VALUE` by which it differs from the user's spec."""

    run_id: str
    overrides: tuple[str, ...]


@dataclass(frozen=True)
class SweepRecord:
    """sweep.json: the points of a sweep; the number of a point is its position.

    A point's job is in the submission.json of its run.
    """

    points: tuple[SweepPoint, ...]
    metric: str | None = None  # ranks the points; None: the one that chose the best checkpoints
    max_parallel: int | None = None  # None: no limit
