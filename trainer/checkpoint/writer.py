"""One thread that commits checkpoints, one at a time. Imports no torch."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.rundir import checkpoint_name
from trainer.checkpoint import commit, reader
from trainer.checkpoint.commit import Draft, Retention
from trainer.errors import TransientStorageError, storage_error


@dataclass(frozen=True)
class Saved:
    """A save that is committed and verified.

    seconds: from its begin until then. stall_s: how long the training stood still for it.
    """

    name: str
    step: int
    seconds: float
    stall_s: float
    nbytes: int


class Writer:
    """Does one piece of work at a time, beside the training.

    What went wrong in it is raised by the next `poll` or `wait`, whichever comes first.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, "checkpoint-writer", _leave_signals_to_others)
        self._in_flight: Future[Saved] | None = None
        self._saved: list[Saved] = []

    def start(self, work: Callable[[], Saved]) -> None:
        """Begin with `work`; there must be none in flight."""
        assert self._in_flight is None
        self._in_flight = self._executor.submit(work)

    def poll(self) -> None:
        """Take note of work that is done. Never waits."""
        if self._in_flight is not None and self._in_flight.done():
            self.wait()

    def wait(self) -> None:
        """Wait until nothing is in flight."""
        if self._in_flight is not None:
            done, self._in_flight = self._in_flight, None
            self._saved.append(done.result())

    def is_busy_after(self, seconds: float) -> bool:
        """Whether there still is work in flight after at most so long; raises as `wait` does."""
        if self._in_flight is not None:
            futures.wait([self._in_flight], seconds)
            self.poll()
        return self._in_flight is not None

    def completed(self) -> list[Saved]:
        """What was saved since the last call."""
        saved, self._saved = self._saved, []
        return saved


def save(root: Path, draft: Draft, retention: Retention) -> int:
    """Commit, verify by reading back, and only then remove older ones; the number of bytes."""
    doing = f"saving checkpoint {root / checkpoint_name(draft.step)}"
    try:
        name = commit.commit(root, draft)
        manifest = _verified(root / name, doing)
        draft.permit()  # a newer attempt may own the run by now, with its own `latest` and oldest
        commit.point(root, commit.LATEST, name)
        if retention.best_step is not None:
            point_at(root, retention.best_step)
        commit.retain(root, draft.step, retention)
    except OSError as error:
        raise storage_error(error, doing) from error
    return sum(file["size"] for file in manifest["files"].values())


def _verified(directory: Path, doing: str) -> dict[str, Any]:
    """The manifest of what was just committed; what does not read back never counts."""
    try:
        return reader.check(directory)
    except reader.Damaged as error:
        aside = reader.quarantine(directory, str(error))
        text = f"{doing}: it does not read back as it was written ({error}); put aside as {aside}"
        raise TransientStorageError(text) from error


def point_at(root: Path, best_step: int) -> None:
    """Have `best` name the checkpoint of this step, if there is one."""
    name = checkpoint_name(best_step)
    if (root / name).is_dir():
        commit.point(root, commit.BEST, name)


def timed(work: Callable[[], int], step: int, started: float, stall_s: float) -> Saved:
    """Do the work of a save that began at `started` on the monotonic clock."""
    nbytes = work()
    seconds = time.monotonic() - started
    return Saved(checkpoint_name(step), step, seconds, stall_s, nbytes)


def _leave_signals_to_others() -> None:
    """A signal wakes the thread that takes it; only the main thread runs its handler."""
    stops = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)
