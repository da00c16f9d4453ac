"""The thread that writes checkpoints, one at a time. Imports no torch."""

from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar, TypeVarTuple

from ..contract import block_stop_signals

Given = TypeVarTuple("Given")
Done = TypeVar("Done")


@dataclass(frozen=True)
class CommittedSave:
    """A checkpoint that is committed and was read back."""

    step: int
    seconds: float  # from the start of the save to its end
    stall_s: float  # how long the training waited for it


class Writer(Generic[Done]):
    """Does one piece of work at a time, such as a save, while the training continues.

    The next call after a failed one raises its error.
    """

    def __init__(self) -> None:
        # The main thread receives the signals: Python runs handlers in that thread only.
        self._executor = ThreadPoolExecutor(1, "checkpoint-writer", block_stop_signals)
        self._in_flight: Future[Done] | None = None
        self._done: list[Done] = []

    def start(self, work: Callable[[*Given], Done], *args: *Given) -> None:
        """Start `work(*args)` in the thread; no other work may be in flight."""
        assert self._in_flight is None
        self._in_flight = self._executor.submit(work, *args)

    def wait(self) -> None:
        """Wait for the work in flight, if there is any."""
        if self._in_flight is not None:
            done, self._in_flight = self._in_flight, None
            self._done.append(done.result())

    def is_busy_after(self, seconds: float) -> bool:
        """Wait at most `seconds`; return whether work is still in flight. Raises as `wait`."""
        if self._in_flight is not None:
            futures.wait([self._in_flight], seconds)
            if self._in_flight.done():
                self.wait()
        return self._in_flight is not None

    def completed(self) -> list[Done]:
        """Return the results of what was completed since the last call. Raises as `wait`."""
        self.is_busy_after(0)
        done, self._done = self._done, []
        return done
