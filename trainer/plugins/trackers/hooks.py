"""Sends the values of `metrics.jsonl` to the trackers of the spec.

Only rank 0 imports their packages. A tracker runs on its own thread: the training waits neither for
its disk nor for its network, and continues without it after any error.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...contract import Outcome, packages, records
from ...errors import UserError, in_one_line, log
from ...hooks import Callback
from ...process.watcher import Pulse
from ...user_code import load
from .built_in import BUILT_IN, CLOSE_LIMIT_S, VARIABLES, Run, State

if TYPE_CHECKING:  # they import torch
    from ...training.loop import Loop

MAX_WAITING = 10_000  # lines that a tracker may lag behind


def callbacks(pulse: Pulse) -> list[Callback]:
    """Return what starts the trackers of a rank; only rank 0 has some."""
    return [Trackers()]


class Trackers(Callback):
    """The trackers of the spec, each on its own thread."""

    def __init__(self) -> None:
        self.threads: list[TrackerThread] = []

    def restored(self, loop: Loop) -> None:
        """Start on rank 0. Raises: UserError where a package or class cannot be imported."""
        self._loop = loop
        if loop.distributed.is_first:
            run = loop.context.run
            self.start(Run(run.dir, run.spec), loop.state.global_step + 1)

    def start(self, run: Run, step: int) -> None:
        """Start the threads; a warning for what fails. step: the first one of this attempt."""
        os.environ |= VARIABLES
        for name in run.spec.log.trackers:
            try:
                make = BUILT_IN.get(name) or load("log.trackers", name)
                thread = TrackerThread(name, make(**run.spec.log.tracker_args.get(name, {})))
            except UserError:
                raise
            except ImportError as error:
                absent = packages.missing(packages.EXTRAS.get(name, ()), "log.trackers")
                raise absent or UserError(f"log.trackers: {name}: {error}") from None
            except Exception as error:  # of an import: a protobuf that it does not know
                give_up(name, in_one_line(error))
            else:
                self.threads.append(thread)
                thread.call("start", run, step)

    def reported(self, step: int, values: Mapping[str, float]) -> None:
        for each in self.threads:
            each.call("log", step, values)

    def end(self) -> None:
        """Let each tracker take all queued values, and the state in which the attempt ended."""
        if self.threads:
            run = self._loop.context.run
            outcome = records.read(Outcome, run.dir.attempt(run.attempt).outcome)
            is_complete = outcome is not None and outcome.status == "completed"
            self.finish("finished" if is_complete else "stopped")
            self._loop.events.event("tracked")

    def finish(self, state: State) -> None:
        """Wait up to `CLOSE_LIMIT_S` for all trackers: a stop must fit into Slurm's grace."""
        deadline = time.monotonic() + CLOSE_LIMIT_S
        for each in self.threads:
            each.call("finish", state, wait_s=max(0.0, deadline - time.monotonic()))
        for each in self.threads:
            each.join(max(0.0, deadline - time.monotonic()))
            if each.is_alive():
                each.give_up(f"it did not finish within {CLOSE_LIMIT_S:.0f} s")


def give_up(name: str, why: str) -> None:
    log(f"warning: log.trackers: {name} is off from here on, the run is not affected: {why}")


class TrackerThread(threading.Thread):
    """Calls the methods of a tracker one after another, until its first error."""

    def __init__(self, name: str, tracker: Any) -> None:
        super().__init__(name=name, daemon=True)
        self._tracker, self._is_on = tracker, True
        self._calls = queue.Queue[tuple[str, tuple[Any, ...]]](MAX_WAITING)
        self.start()

    def call(self, method: str, *args: Any, wait_s: float = 0.0) -> None:
        """Queue a call, at once or within so many seconds."""
        if self._is_on:
            try:
                self._calls.put((method, args), timeout=wait_s)
            except queue.Full:
                self.give_up(f"it lags {MAX_WAITING} lines behind")

    def run(self) -> None:
        method = ""
        try:
            while method != "finish":
                method, args = self._calls.get()
                getattr(self._tracker, method)(*args)
        except BaseException as error:  # it may call sys.exit
            self.give_up(in_one_line(error))

    def give_up(self, why: str) -> None:
        if self._is_on:
            self._is_on = False
            give_up(self.name, why)
