"""Lets a torchrun script save and stop in time. Runs of the kit find it; others need a copy of it.

    from kit_stop import Stop
    stop = Stop()                    # early: stop signals before it have no effect (see below)
    for step in ...:                 # counted from 1 over the whole run, not over this start
        ...                          # one training step on every rank
        stop.progress(step, total, loss=loss)  # optional: make status shows it
        if stop.should_stop(step):   # the same answer on all ranks
            ...                      # save: rank 0, or every rank
            stop.stopped()           # exits with 0; the run continues in the next attempt
        stop.saved(step)             # optional, after each other save: it counts as progress
    stop.completed()                 # exits with 0; the run is complete

Set `launch.stop_signal: TERM` in the spec. The kit then sends SIGTERM every second from the warning
on, and creates the file KIT_STOP_FILE. KIT_DEADLINE is the end of the time limit (seconds since the
epoch; empty if unknown). Under plain torchrun these variables are missing: then should_stop() is
always False, and signals have their usual effect.

stopped() and completed() write a marker, which shows the kit whether the run is complete. If a
script exits with 0 and without a marker, its run is complete, with two exceptions: after a warning
it is started again, and with fewer reported steps than `total` it counts as failed.
"""

import contextlib
import json
import math
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WRITE_S = 1  # the shortest time between two writes of progress.json
# About the time between two agreements of the ranks, and the most calls: the next may be slower.
AGREE_S, MAX_CALLS = 0.05, 16


class Stop:
    """Shows whether to stop; `every`: calls between two agreements of the ranks, else by time."""

    def __init__(self, every: int | None = None) -> None:
        self.file = os.environ.get("KIT_STOP_FILE")
        self.path = Path(self.file or "")
        self.run_dir = self.path.parent.parent
        self.rank = int(os.environ.get("RANK", "0"))
        self.every, self.step, self.last_saved = every, 0, 0
        self.warned, self.next_look = False, 0.0
        self.is_agreed, self.calls, self.interval = False, 0, 1
        self.last_agreement = time.monotonic()
        self.report: dict[str, Any] = {}  # what is not written yet
        self.next_write = 0.0
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2) if self.file else ():
            signal.signal(number, self._warn)

    def _warn(self, number: int, frame: object) -> None:
        self.warned = True  # nothing else: the step at hand is finished first

    def should_stop(self, step: int) -> bool:
        """Return whether to save and stop now; all ranks must call it after the same steps.

        The ranks agree about every 50 ms: where steps are slow, at each call. Once they have agreed
        to stop, each later call returns True, too.
        """
        self.step, self.calls = step, self.calls + 1
        if self.file is not None and not self.is_agreed and self.calls >= self.interval:
            now = time.monotonic()
            if self.rank == 0 and not self.warned and now >= self.next_look:
                self.warned, self.next_look = self._is_stop_requested(), now + 1
            calls = AGREE_S * self.calls // max(now - self.last_agreement, 1e-6)
            self._agree(self.every or max(1, min(2 * self.interval, MAX_CALLS, int(calls))))
            self.calls, self.last_agreement = 0, now
        return self.is_agreed

    def _is_stop_requested(self) -> bool:
        """Return whether an agent, perhaps on another node, has created the file.

        An NFS client may not see a new file for a minute. link() makes it ask the server; the call
        always fails, and changes nothing.
        """
        for path in (self.path.parent, self.path):
            with contextlib.suppress(OSError):
                os.link("/proc", path)
        return self.path.exists()

    def _agree(self, interval: int) -> None:
        """Stop if any rank was warned: if one left alone, all others would hang.

        interval: calls until the next agreement; that of rank 0 counts.
        """
        dist = sys.modules.get("torch.distributed")
        if dist is None or not dist.is_available() or not dist.is_initialized():
            self.is_agreed = self.warned  # and the next call looks for other ranks again
            return
        torch = sys.modules["torch"]
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        values = torch.tensor([self.warned, 0 if self.rank else interval], device=device)
        dist.all_reduce(values, op=dist.ReduceOp.MAX)
        is_any, self.interval = values.tolist()
        self.is_agreed = bool(is_any)

    def progress(self, step: int, total: float | None = None, **metrics: Any) -> None:
        """Report a finished step of `total` steps, and metrics; rank 0 writes them once a second.

        Call it after each step, on all ranks or on rank 0. It reads a tensor only when it writes.
        What is no number is left out; total: None or -1 if there is no end.
        """
        if self.file is None or self.rank != 0 or (done := _whole(step)) is None:
            return
        steps = _whole(total) or None
        if not self.next_write:
            self._note("first_step", done)
        self.report = {"step": done, "total": steps, "metrics": metrics}
        if time.monotonic() >= self.next_write or done == steps:  # the last one is the end
            self._report()

    def saved(self, step: int) -> None:
        """Report that a complete checkpoint of this step is on the disk, in whatever folder."""
        if self.file is not None and self.rank == 0 and (done := _whole(step)) is not None:
            self.last_saved = done
            with _printed():
                replace(self.run_dir / "saved.json", {"step": done})
                self._note("save", done)

    def _note(self, name: str, step: int) -> None:
        attempt = int(self.path.parent.name.partition("-")[2])
        event = {"t": time.time(), "event": name, "attempt": attempt, "step": step}
        with _printed(), open(self.run_dir / "timeline/rank-00000.jsonl", "a") as file:
            file.write(json.dumps(event) + "\n")

    def _report(self) -> None:
        """Write the newest report to progress.json."""
        if self.report:
            read = {name: _number(value) for name, value in self.report["metrics"].items()}
            numbers = {name: number for name, number in read.items() if number is not None}
            with _printed():
                replace(self.run_dir / "progress.json", self.report | {"metrics": numbers})
            self.report, self.next_write = {}, time.monotonic() + WRITE_S

    def stopped(self) -> None:
        """Exit with 0 after the save: the run continues in the next attempt."""
        if _whole(self.step) != self.last_saved:
            self.saved(self.step)
        self._leave("stopped")

    def completed(self) -> None:
        """Exit with 0 at the end of the training, also after a warning: the run is complete."""
        self._leave("completed")

    def _leave(self, status: str) -> None:
        self._report()
        if self.file is not None and self.rank == 0:
            marker = self.path.with_name("outcome.json")
            replace(marker, {"status": status, "global_step": _whole(self.step)})
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(0)  # Python's tear-down of DDP over gloo may hang for ever (torch 2.13)


def _number(value: Any) -> float | None:
    """Return a value as a number; None for what is none."""
    with contextlib.suppress(Exception):  # of whatever kind: no report ends a training
        # Without detach() torch warns of a loss that has a gradient.
        value = value.detach() if hasattr(value, "detach") else value
        return None if isinstance(value, (str, bytes)) else float(value)
    return None


def _whole(value: Any) -> int | None:
    number = _number(value)
    return int(number) if number is not None and 0 <= number < math.inf else None


@contextlib.contextmanager
def _printed() -> Iterator[None]:
    """Print an error of a report: a full disk ends no training."""
    try:
        yield
    except OSError as error:
        with contextlib.suppress(OSError, ValueError):
            print(f"kit_stop: {error}", file=sys.stderr, flush=True)


def replace(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON file as a whole; first under a name that no other process writes."""
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}.tmp")
    try:
        temporary.write_text(json.dumps(value))
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
