"""This rank's timeline: wall-clock events, written to the run directory once it is known."""

import contextlib
import time
from typing import Any

from ..contract import RunDir, Timeline


class Events:
    """Events of one rank; those before `open` are kept in memory and written by it.

    A full or missing disk loses events; it ends no training and hides no error.
    """

    def __init__(self, rank: int) -> None:
        self._writer = f"rank-{rank:05d}"
        self._kept: list[tuple[str, dict[str, Any]]] = []
        self._timeline: Timeline | None = None

    def open(self, run_dir: RunDir, attempt: int) -> None:
        """Write to `run_dir` from now on; discard events if this machine does not have it."""
        with contextlib.suppress(OSError):
            if self._timeline is None and run_dir.path.is_dir():
                run_dir.timeline(self._writer).parent.mkdir(exist_ok=True)
                self._timeline = Timeline(run_dir, self._writer, attempt)
                for name, fields in self._kept:
                    self.event(name, **fields)
                self._kept.clear()

    def event(self, name: str, **fields: Any) -> None:
        """Write that `name` happened now (or at `t`, in seconds since the epoch)."""
        if self._timeline is None:
            self._kept.append((name, {"t": round(time.time(), 3), **fields}))
            return
        with contextlib.suppress(OSError):
            self._timeline.event(name, **fields)
