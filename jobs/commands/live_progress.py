"""The live line of a local run, read from progress.json."""

from __future__ import annotations

import math
import shutil
import sys
import time

from slurm_job_kit.jobs import records
from slurm_job_kit.jobs.console import discard_output, format_metric
from slurm_job_kit.jobs.records.training import Progress
from slurm_job_kit.jobs.rundir import RunDir

EPOCH_LINES_APART_S = 10


def read(run_dir: RunDir) -> Progress | None:
    """The content of progress.json; None before the first step, and while it is being written."""
    try:
        return records.read(Progress, run_dir.progress)
    except (OSError, ValueError):
        return None


def format_progress(progress: Progress, is_running: bool = True) -> str:
    """The progress as one line of text; speed and time left only of a run that is running."""
    parts = []
    # The present epoch, where the file counts finished ones.
    if progress.epoch is not None and progress.epochs is not None:
        parts.append(f"epoch {min(progress.epoch + 1, progress.epochs)}/{progress.epochs}")
    parts.append(f"step {progress.step}/{'?' if progress.total is None else progress.total}")
    if progress.loss is not None:
        parts.append(format_metric("loss", progress.loss))
    parts += [format_metric(each.name, each.value) for each in progress.metrics or ()]
    if is_running and progress.samples_per_s is not None:
        parts.append(f"{progress.samples_per_s:.0f} samples/s")
    if is_running and progress.time_left is not None:
        parts.append(f"{progress.time_left} left")
    return "  ".join(parts)


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
        """When progress.json was last written, in ns of the file system's clock; None if never."""
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
