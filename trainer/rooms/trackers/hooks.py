"""Starts the trackers of the spec's `log` section on rank 0, and gives them what it reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...hooks import Callback, Pulse
from . import trackers

if TYPE_CHECKING:
    from ...loop import Loop


def callbacks(pulse: Pulse) -> list[Callback]:
    """Return the callback of a rank."""
    return [Trackers()]


class Trackers(Callback):
    """The trackers of rank 0; another rank has none."""

    def __init__(self) -> None:
        self._trackers: list[trackers.Tracker] = []

    def restored(self, loop: Loop) -> None:
        """Start the trackers. Raises: UserError where a package is missing."""
        if loop.distributed.is_first:
            first_step = loop.state.global_step + 1
            self._trackers = trackers.start(loop.context.run, first_step)

    def reported(self, step: int, values: Mapping[str, float]) -> None:
        """Record these values of a global step."""
        for tracker in self._trackers:
            tracker.scalars(step, values)

    def end(self) -> None:
        """Wait at most `trackers.CLOSE_LIMIT_S` for each tracker."""
        for tracker in self._trackers:
            tracker.close()
