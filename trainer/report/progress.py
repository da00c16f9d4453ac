"""The file `progress`: rank 0's last finished step, and the fields of a live line."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

from jobs.rundir import PROGRESS_STEP_WIDTH

STATUS_WIDTH = 500
STATUS_KEYS = (
    *("total", "epoch", "epochs", "loss", "accuracy"),
    *("samples_per_s", "eta_s", "time_left", "lr"),
)
# A write that took c seconds is followed by none for 100 c: at most 1 % of the time goes into it.
REST_PER_WRITE = 100
LONGEST_REST_S = 1.0


class Progress:
    """The open file. It is only told to people and counted: no error of it ends a training.

    After a kill the step there says how many steps are done twice. A write is 1 to 3 us on a local
    disk, so there every step is written that takes a third of a millisecond; where it is a round
    trip to a server, up to a second of steps may be missing in that count.
    """

    def __init__(self, path: Path, step: int = 0) -> None:
        self._fd = _open(path, step)
        self._status: dict[str, Any] = {}
        self._step = step
        self._next_write = self._last_cost_s = 0.0

    def step_done(self, step: int) -> None:
        """Overwrite the finished step in place, unless the last write is too fresh."""
        self._step = step
        if time.monotonic() >= self._next_write:
            self.flush()

    def flush(self) -> None:
        """Write the finished step now."""
        started = time.monotonic()
        self._write(_line(self._step), 0)
        now = time.monotonic()
        # The cheaper of two: one write that was held up by a busy core does not count.
        cost_s = min(now - started, self._last_cost_s)
        self._next_write = now + min(REST_PER_WRITE * cost_s, LONGEST_REST_S)
        self._last_cost_s = now - started

    def status(self, **fields: Any) -> None:
        """Write these fields, beside the others as they were."""
        self._status.update(fields)
        text = json.dumps({key: self._status.get(key) for key in STATUS_KEYS})
        self._write(f"{text:<{STATUS_WIDTH - 1}}\n", PROGRESS_STEP_WIDTH + 1)

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


def _line(step: int) -> str:
    return f"{step:0{PROGRESS_STEP_WIDTH}d}\n"


def _open(path: Path, step: int) -> int | None:
    """A new file under this name: an attempt before this one may be alive, and writes to the old.

    Where there is no room for it, that one is taken; None without any.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with contextlib.suppress(OSError):
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            os.pwrite(fd, _line(step).encode(), 0)
            os.replace(temporary, path)
            return fd
        except OSError:
            os.close(fd)
            os.unlink(temporary)
    with contextlib.suppress(OSError):
        return os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    return None
