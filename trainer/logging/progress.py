"""Writes progress.json: rank 0's last finished optimizer step, and the fields of a live line."""

import contextlib
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from ..contract import no_link, replacing, training

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
        self._file = _open(path, self._shown)
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
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def _write(self, text: str, offset: int) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.pwrite(self._file.fileno(), text.encode(), offset)


def _open(path: Path, progress: training.Progress) -> BinaryIO | None:
    """Return a new file at `path`; the old one where the disk has no room; None if it refuses."""
    with contextlib.suppress(OSError):
        return open_new(path, training.progress_text(progress).encode())
    with contextlib.suppress(OSError):
        return os.fdopen(no_link(path, os.O_WRONLY | os.O_CREAT), "wb")
    return None


def open_new(path: Path, content: bytes, is_durable: bool = False) -> BinaryIO:
    """Replace a file by one with this content; return it, open for writing after that.

    An earlier attempt may be alive on a node that was cut off: it continues to write to the old
    file, which has no name any more.
    """
    with replacing(path) as temporary:
        file = open(temporary, "xb")  # noqa: SIM115 (open for the whole run)
        file.write(content)
        file.flush()
        if is_durable:
            os.fsync(file.fileno())
    return file
