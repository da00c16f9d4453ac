"""Writes progress.json: rank 0's last finished optimizer step, and the fields of a live line."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..contract import training

# A write that took c seconds is followed by none for 100 c: at most 1 % of the time goes into it.
REST_PER_WRITE = 100
LONGEST_REST_S = 1.0


class Progress:
    """The open file. It is only shown and counted, so no error of it ends a training.

    After a kill the step in the file shows how many steps are done twice. A write takes 1 to 3 us
    on a local disk: every step of a third of a millisecond or more is written there. Where a write
    is a round trip to a server, the steps of up to a second may be missing in the file.
    """

    def __init__(self, path: Path, step: int = 0) -> None:
        self._shown = training.Progress(step)
        self._fd = _open(path, self._shown)
        self._step = step
        self._next_write = self._last_cost_s = 0.0

    def step_done(self, step: int) -> None:
        """Overwrite the finished step in place, unless the last write was a moment ago."""
        self._step = step
        if time.monotonic() >= self._next_write:
            self.flush()

    def flush(self) -> None:
        """Write the finished step now."""
        started = time.monotonic()
        self._write(training.progress_step_text(self._step), training.PROGRESS_STEP_AT)
        now = time.monotonic()
        # The cheaper of two: one write that was delayed by a busy core does not count.
        cost_s = min(now - started, self._last_cost_s)
        self._next_write = now + min(REST_PER_WRITE * cost_s, LONGEST_REST_S)
        self._last_cost_s = now - started

    def status(self, **fields: Any) -> None:
        """Write these fields of `training.Progress`; the other fields keep their values."""
        self._shown = replace(self._shown, step=self._step, **fields)
        self._write(training.progress_text(self._shown), 0)

    def close(self) -> None:
        """Write the finished step and close the file."""
        self.flush()
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = None

    def _write(self, text: str, offset: int) -> None:
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.pwrite(self._fd, text.encode(), offset)


def _open(path: Path, progress: training.Progress) -> int | None:
    """Return the descriptor of a new file at `path`; None where the disk refuses it.

    A new one, because an earlier attempt may still be alive and write: it has the old file open.
    Where the disk has no room for a new file, the old one is opened.
    Not jobs.rundir.write_atomic, because the new file stays open.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with contextlib.suppress(OSError):
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            os.pwrite(fd, training.progress_text(progress).encode(), 0)
            os.replace(temporary, path)
            return fd
        except OSError:
            os.close(fd)
            os.unlink(temporary)
    with contextlib.suppress(OSError):
        return os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    return None
