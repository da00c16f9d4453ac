"""Stops a torchrun script of one's own in time. Copy this file beside your script.

    from kit_stop import Stop
    stop = Stop()                    # early; the warnings before it are repeated
    for step in ...:
        ...                          # one training step on every rank
        if stop.should_stop(step):   # the same answer on all ranks
            ...                      # save, every rank or rank 0
            stop.stopped()           # leaves the marker, exits with 0
    stop.completed()                 # likewise, at the end

Completed or stopped? Without a warning exit 0 is completed. After one the marker says which; with
no marker exit 0 is stopped where launch.stop_signal names a signal (the next attempt finds out in
a moment if all is done), and completed where it is none; any other exit is a preemption. The
warning comes as that signal, each second, and as the file KIT_STOP_FILE. KIT_DEADLINE is when the
time limit ends (seconds since the epoch; empty if it is not known). Under plain torchrun, without
these variables, nothing ever stops and signals do what they always do.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path


class Stop:
    """Whether this attempt was warned; `every`: steps between two agreements of the ranks."""

    def __init__(self, every: int = 10) -> None:
        self.file = os.environ.get("KIT_STOP_FILE")
        self.rank = int(os.environ.get("RANK", "0"))
        self.every, self.step, self.warned, self.next_look = every, 0, False, 0.0
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2) if self.file else ():
            signal.signal(number, self._warn)

    def _warn(self, number: int, frame: object) -> None:
        self.warned = True  # nothing else: the step at hand is finished first

    def should_stop(self, step: int) -> bool:
        """Whether to save and stop after this step; asked by all ranks after the same steps."""
        self.step = step
        if self.file is None or step % self.every:
            return False
        if self.rank == 0 and not self.warned and time.monotonic() >= self.next_look:
            self.warned = Path(self.file).exists()
            self.next_look = time.monotonic() + 1
        return self._any(self.warned)

    def _any(self, mine: bool) -> bool:
        """Whether it is true on any rank: a rank that left alone would hang all others."""
        dist = sys.modules.get("torch.distributed")
        if dist is None or not dist.is_available() or not dist.is_initialized():
            return mine
        torch = sys.modules["torch"]
        flag = torch.tensor(int(mine), device="cuda" if dist.get_backend() == "nccl" else "cpu")
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag.item())

    def stopped(self) -> None:
        """Exit with 0 after the save: the run goes on at its next attempt."""
        self._leave("stopped")

    def completed(self) -> None:
        """Exit with 0: all is done, whatever warning came meanwhile."""
        self._leave("completed")

    def _leave(self, status: str) -> None:
        if self.file is not None and self.rank == 0:
            marker = Path(self.file).with_name("outcome.json")
            temporary = marker.with_suffix(".tmp")
            temporary.write_text(json.dumps({"status": status, "global_step": self.step}))
            os.replace(temporary, marker)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # Python's tear-down of DDP over gloo may hang for ever (torch 2.13)
