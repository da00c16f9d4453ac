"""Lets a torchrun script save and stop in time. Copy this file beside your script.

    from kit_stop import Stop
    stop = Stop()                    # early: stop signals before it have no effect (see below)
    for step in ...:                 # counted from 1 over the whole run, not over this start
        ...                          # one training step on every rank
        stop.progress(step, total, loss=loss)  # optional: make status and the log show it
        if stop.should_stop(step):   # the same answer on all ranks
            ...                      # save: rank 0, or every rank
            stop.saved(step)         # optional, after each save: counts as progress of the run
            stop.stopped()           # exits with 0; the run continues in the next attempt
    stop.completed()                 # exits with 0; the run is complete

Set `launch.stop_signal: TERM` in the spec. The kit then sends SIGTERM every second from the warning
on, and creates the file KIT_STOP_FILE. KIT_DEADLINE is the end of the time limit (seconds since the
epoch; empty if unknown). Under plain torchrun these variables are missing: then should_stop() is
always False, and signals have their usual effect.

stopped() and completed() write a marker, which shows the kit whether the run is complete. If a
script exits with 0 and without a marker, its run is complete, with two exceptions: after a warning
it is started again, and with fewer reported steps than `total` it counts as failed.
"""

import atexit
import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

WRITE_S, PRINT_S = 1, 10  # the shortest time between two writes of progress.json, two lines


class Stop:
    """Shows whether to stop; `every`: number of steps between two agreements of the ranks."""

    def __init__(self, every: int = 10) -> None:
        self.file = os.environ.get("KIT_STOP_FILE")
        self.rank = int(os.environ.get("RANK", "0"))
        self.every, self.step, self.warned, self.next_look = every, 0, False, 0.0
        self.reported: tuple[int, int | None, dict[str, Any]] | None = None
        self.written, self.printed, self.next_write, self.next_print = -1, -1, 0.0, 0.0
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2) if self.file else ():
            signal.signal(number, self._warn)

    def _warn(self, number: int, frame: object) -> None:
        self.warned = True  # nothing else: the step at hand is finished first

    def should_stop(self, step: int) -> bool:
        """Return whether to save and stop now; all ranks must call it after the same steps."""
        self.step = step
        if self.file is None or step % self.every:
            return False
        if self.rank == 0 and not self.warned and time.monotonic() >= self.next_look:
            self.warned = self._is_stop_requested()
            self.next_look = time.monotonic() + 1
        return self._any(self.warned)

    def _is_stop_requested(self) -> bool:
        """Return whether an agent, perhaps on another node, has created the file.

        An NFS client may not see a new file for a minute. link() makes it ask the server; the call
        always fails, and changes nothing.
        """
        for path in (Path(str(self.file)).parent, Path(str(self.file))):
            with contextlib.suppress(OSError):
                os.link("/proc", path)
        return Path(str(self.file)).exists()

    def _any(self, mine: bool) -> bool:
        """Return whether it is true on any rank: if one rank left alone, all others would hang."""
        dist = sys.modules.get("torch.distributed")
        if dist is None or not dist.is_available() or not dist.is_initialized():
            return mine
        torch = sys.modules["torch"]
        flag = torch.tensor(int(mine), device="cuda" if dist.get_backend() == "nccl" else "cpu")
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag.item())

    def progress(self, step: int, total: int | None = None, **metrics: Any) -> None:
        """Report a finished step of `total` steps, and metrics; rank 0 writes them once a second.

        Call it after each step, on all ranks or on rank 0. It reads a tensor only when it writes.
        """
        if self.file is None or self.rank != 0:
            return
        is_first, self.reported = self.reported is None, (int(step), total, metrics)
        if is_first:
            atexit.register(self._report, is_exit=True)
            self._note_first_step(step)
        if time.monotonic() >= self.next_write or step == total:  # the last one is the end
            self._report()

    def saved(self, step: int) -> None:
        """Report that a complete checkpoint of this step is on the disk, in whatever folder."""
        if self.file is not None and self.rank == 0:
            self._write(self._run_dir() / "saved.json", {"step": step})

    def _run_dir(self) -> Path:
        return Path(str(self.file)).parent.parent

    def _note_first_step(self, step: int) -> None:
        attempt = int(Path(str(self.file)).parent.name.partition("-")[2])
        event = {"t": time.time(), "event": "first_step", "attempt": attempt, "step": int(step)}
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
            path = self._run_dir() / "timeline/rank-00000.jsonl"
            with open(os.open(path, flags, 0o666), "a") as file:
                file.write(json.dumps(event) + "\n")
        except OSError as error:  # a full disk ends no training
            print(f"kit_stop: {error}", file=sys.stderr, flush=True)

    def _report(self, is_last: bool = False, is_exit: bool = False) -> None:
        """Write the newest report to progress.json; to the log every ten seconds, and the last."""
        if self.reported is None:
            return
        step, total, metrics = self.reported
        if is_exit:  # perhaps after an error: reading a tensor of a GPU may then hang
            metrics = {name: n for name, n in metrics.items() if isinstance(n, (int, float))}
        numbers = {name: float(value) for name, value in metrics.items()}
        now = time.monotonic()
        if step != self.printed and (is_last or is_exit or now >= self.next_print):
            shown = "".join(f"  {name} {number:.4g}" for name, number in numbers.items())
            print(f"step {step}/{total or '?'}{shown}", flush=True)
            self.printed, self.next_print = step, now + PRINT_S
        if step != self.written:
            values = {"step": step, "total": total and int(total), "metrics": numbers}
            self._write(self._run_dir() / "progress.json", values)
            self.written, self.next_write = step, now + WRITE_S

    def _write(self, path: Path, value: dict[str, Any]) -> None:
        try:
            replace(path, value)
        except OSError as error:  # a full disk ends no training
            print(f"kit_stop: {error}", file=sys.stderr, flush=True)

    def stopped(self) -> None:
        """Exit with 0 after the save: the run continues in the next attempt."""
        self._leave("stopped")

    def completed(self) -> None:
        """Exit with 0 at the end of the training, also after a warning: the run is complete."""
        self._leave("completed")

    def _leave(self, status: str) -> None:
        self._report(is_last=True)
        if self.file is not None and self.rank == 0:
            marker = Path(self.file).with_name("outcome.json")
            replace(marker, {"status": status, "global_step": self.step})
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # Python's tear-down of DDP over gloo may hang for ever (torch 2.13)


def replace(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON file as a whole; first under a name that is new, and that nobody knows."""
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}.tmp")
    try:
        with open(temporary, "x") as file:
            file.write(json.dumps(value))
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
