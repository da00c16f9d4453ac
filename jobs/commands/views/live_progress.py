"""The live line of a local run, read from progress.json."""

from __future__ import annotations

import math
import shutil
import sys
import time

from ...console import discard_output, format_metric, format_metrics
from ...records.training import Progress
from ...rundir import RunDir
from ...runs.state import read_progress

EPOCH_LINES_APART_S = 10


def format_progress(progress: Progress, is_running: bool = True) -> str:
    """Return the progress as one line of text, with speed and time left only of a running run."""
    parts = [format_position(progress), format_values(progress)]
    return "  ".join(filter(None, [*parts, format_pace(progress) if is_running else ""]))


def format_position(progress: Progress) -> str:
    """Return `epoch 2/5 step 100/220`."""
    text = f"step {progress.step}/{'?' if progress.total is None else progress.total}"
    if progress.epoch is None or progress.epochs is None:
        return text
    # The present epoch, where the file counts finished ones.
    return f"epoch {min(progress.epoch + 1, progress.epochs)}/{progress.epochs}  {text}"


def format_values(progress: Progress) -> str:
    """Return `loss 0.0871  held-out accuracy 97.22%`: of training and any last evaluation."""
    parts = [] if progress.loss is None else [format_metric("loss", progress.loss)]
    metrics = {each.name: each.value for each in progress.metrics or ()}
    return "  ".join(parts + ([format_metrics(metrics)] if metrics else []))


def format_pace(progress: Progress) -> str:
    """Return `921 samples/s 8 s left`; empty where neither is known."""
    speed, left = progress.samples_per_s, progress.time_left
    parts = [] if speed is None else [f"{speed:.0f} samples/s"]
    return "  ".join(parts if left is None else [*parts, f"{left} left"])


class ProgressLine:
    """One line on a terminal, rewritten in place; elsewhere a line per epoch, at most every 10 s.

    On stderr. What an earlier attempt wrote is not shown: a resume may have changed the total.
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
        """Return progress.json's last write in ns of the file system's clock; None if never."""
        try:
            return self._run_dir.progress.stat().st_mtime_ns
        except OSError:
            return None

    def show(self) -> None:
        """Show the newest progress, if there is any."""
        progress = read_progress(self._run_dir)
        if progress is None or self._written() == self._stale:
            return
        if self._is_terminal:
            width = shutil.get_terminal_size().columns - 1  # a wrapped line is not rewritten
            _write(f"\r\033[K{format_progress(progress)[:width]}")
            self._is_open = True
        elif progress.epoch != self._epoch and self._is_line_due():
            self._epoch, self._last_line = progress.epoch, time.monotonic()
            _write(f"{format_progress(progress)}\n")

    def _is_line_due(self) -> bool:
        return time.monotonic() - self._last_line >= EPOCH_LINES_APART_S

    def note(self, text: str) -> None:
        """Print a text on a line of its own."""
        self.end()
        _write(f"{text}\n")

    def end(self) -> None:
        """End the live line."""
        if self._is_open:
            _write("\n")
            self._is_open = False


def _write(text: str) -> None:
    """Write to stderr; where it is closed, print nothing from now on.

    A closed terminal, or a `tee` that died of the same Ctrl-C, must not end the run unsaved.
    """
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        discard_output()
