"""Writes progress.json: rank 0's last finished optimizer step, and the fields of a live line."""

import contextlib
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..contract import files, records, training

WRITE_S = 1.0  # the shortest time between two writes


class Progress:
    """The file, replaced at most once a second. It is only shown and counted.

    After a kill its step shows how many steps are done twice; those of the last second may be
    missing. No error of it ends a training.
    """

    def __init__(self, path: Path, step: int = 0) -> None:
        self._path, self._shown, self._step = path, training.Progress(step), step
        self._next_write = 0.0

    def step_done(self, step: int) -> None:
        """Take the finished step."""
        self._step = step
        self._write_if_due()

    def status(self, **fields: Any) -> None:
        """Take these fields of `training.Progress`; the other fields keep their values."""
        self._shown = replace(self._shown, **fields)
        self._write_if_due()

    def flush(self) -> None:
        """Write the file now."""
        self._next_write = time.monotonic() + WRITE_S
        with contextlib.suppress(OSError), files.replacing(self._path) as temporary:
            temporary.write_text(records.text(replace(self._shown, step=self._step)))

    def _write_if_due(self) -> None:
        if time.monotonic() >= self._next_write:
            self.flush()
