"""The time between two periodic checkpoints: as configured, or from what a save costs."""

from __future__ import annotations

import math

from ..contract import Checkpoint

LEAST_S = 60.0
STALLS = 20  # so saves stop the training for at most a twentieth of the time


class SaveInterval:
    """The seconds between two periodic checkpoints; infinite where none is due by the clock."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        minutes = checkpoint.every_minutes
        every = (minutes, checkpoint.every_epochs, checkpoint.every_steps)
        self._is_auto = checkpoint.interval == "auto" and not any(every)
        self.seconds = math.inf
        if minutes is not None:
            self.seconds = 60 * minutes
        elif self._is_auto:
            self.seconds = LEAST_S

    def record_save(self, stall_s: float) -> None:
        """Choose the interval after a save for which the training stopped for `stall_s`."""
        if self._is_auto:
            self.seconds = max(LEAST_S, STALLS * stall_s)
