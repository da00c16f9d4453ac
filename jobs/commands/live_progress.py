"""The live line of a local run, read from the run directory's `progress` file."""

from __future__ import annotations

import json
import math
import shutil
import sys
import time
from typing import Any

from jobs.console import hang_up
from jobs.rundir import RunDir

EPOCH_LINES_APART_S = 10


def read(run_dir: RunDir) -> dict[str, Any] | None:
    """Rank 0's last words on its progress; None before the first step.

    Keys: step, total, epoch, epochs, loss, accuracy (held-out, 0 to 1), samples_per_s, eta_s,
    time_left (that in words), lr; some are null early on.
    """
    try:
        first, _, second = run_dir.progress.read_text(encoding="utf-8").partition("\n")
        return {"step": int(first), **json.loads(second or "{}")}
    except (OSError, ValueError):
        return None


def words(progress: dict[str, Any]) -> str:
    """One line for people."""
    parts = []
    if progress.get("epochs") is not None:  # the present one, where the file counts finished ones
        epochs = progress["epochs"]
        parts.append(f"epoch {min(progress['epoch'] + 1, epochs)}/{epochs}")
    parts.append(f"step {progress['step']}/{progress.get('total', '?')}")
    if progress.get("loss") is not None:
        parts.append(f"loss {progress['loss']:.4f}")
    if progress.get("accuracy") is not None:
        parts.append(f"accuracy {progress['accuracy']:.2%}")
    if progress.get("samples_per_s") is not None:
        parts.append(f"{progress['samples_per_s']:.0f} samples/s")
    if progress.get("time_left") is not None:
        parts.append(f"{progress['time_left']} left")
    return "  ".join(parts)


class ProgressLine:
    """One line on a terminal, rewritten in place; elsewhere a line of an epoch now and then.

    To stderr. What an earlier attempt wrote is not shown: a resume may have changed the plan.
    """

    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir = run_dir
        self._is_terminal = sys.stderr.isatty()
        self._epoch: object = None
        self._last_line = -math.inf
        self._is_open = False
        self.begin()

    def begin(self) -> None:
        """Show nothing until the ranks of a new attempt have written their progress."""
        self._stale = self._written()

    def _written(self) -> int | None:
        """When the progress was last written, in ns by the file system's clock; None if never."""
        try:
            return self._run_dir.progress.stat().st_mtime_ns
        except OSError:
            return None

    def show(self) -> None:
        """Show the newest progress, if there is any."""
        progress = read(self._run_dir)
        if progress is None or self._written() == self._stale:
            return
        if self._is_terminal:
            width = shutil.get_terminal_size().columns - 1  # a wrapped line is not rewritten
            _write(f"\r\033[K{words(progress)[:width]}")
            self._is_open = True
        elif progress.get("epoch") != self._epoch and self._is_line_due():
            self._epoch, self._last_line = progress.get("epoch"), time.monotonic()
            _write(f"{words(progress)}\n")

    def _is_line_due(self) -> bool:
        return time.monotonic() - self._last_line >= EPOCH_LINES_APART_S

    def note(self, text: str) -> None:
        """Say something on a line of its own."""
        self.end()
        _write(f"{text}\n")

    def end(self) -> None:
        """Leave the live line."""
        if self._is_open:
            _write("\n")
            self._is_open = False


def _write(text: str) -> None:
    """Write to stderr; where nobody listens any more, talk to nobody from now on.

    A closed terminal, or a `tee` that died of the same Ctrl-C, must not end the run unsaved.
    """
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        hang_up()
