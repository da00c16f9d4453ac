"""Writes step, speed and memory of now and then to a timeline, from which the report draws them.

metrics.jsonl has no times: equal runs have equal files.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ....jobs.rooms.report import STEPS_WRITER
from ...contract import Timeline
from ...hooks import Callback
from ...process.watcher import Pulse

if TYPE_CHECKING:
    from ...loop import Loop

PACE_APART_S = 10.0  # between two lines: a year has three million of them


def callbacks(pulse: Pulse) -> list[Callback]:
    """Return the callback."""
    return [_Pace()]


class _Pace(Callback):
    def __init__(self) -> None:
        self._next = -math.inf

    def restored(self, loop: Loop) -> None:
        run = loop.context.run
        self._timeline = Timeline(run.dir, STEPS_WRITER, run.attempt)

    def reported(self, step: int, values: Mapping[str, float]) -> None:
        from ...logging.reporter import peak_memory_bytes  # a rank imports torch after this module

        if "samples_per_s" not in values or (now := time.monotonic()) < self._next:
            return
        self._next = now + PACE_APART_S
        speed, memory_mib = round(values["samples_per_s"], 1), peak_memory_bytes() // 2**20
        with contextlib.suppress(OSError):  # a full disk ends no training here
            self._timeline.event("steps", step=step, samples_per_s=speed, memory_mib=memory_mib)
