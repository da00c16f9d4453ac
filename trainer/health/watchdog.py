"""Ends an attempt in which nothing goes on any more, and says which rank it waits for.

A thread of each rank counts its own ticks since the training loop last showed a sign of life: a
job that was suspended (`scontrol suspend`, SIGSTOP) did not tick, so that is no hang. The first
rank over its limit calls the others by a file; who is alive answers with its stacks in its log
and a record of where it is. Who does not answer is stopped, or stuck in C under the GIL.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from jobs.rundir import read_json, write_json
from trainer.errors import Hang, PeerHang, fail, leaving, tell, within
from trainer.health.diagnosis import (
    Finding,
    end_siblings,
    place_of_main_thread,
    process_of,
    stacks_of_all_threads,
    verdict,
)

if TYPE_CHECKING:
    from trainer.dist.run_handle import Job

TICK_S = 1.0
POLL_S = 0.25
MAX_TICK_S = 2.0  # a longer one was a suspension, or a machine too busy to judge by
# Ends before the collective timeout, by which gloo and NCCL end a rank without any names.
MAX_LIMIT_S = 540.0
# Steps of milliseconds may be followed by a first save or evaluation that takes minutes.
MIN_LEARNED_S = 300.0
LEARNED_FACTOR = 10
# The ranks' ticks and limits differ, and network file systems show a new file late.
GRACE_S = 5.0
CONSULT_LIMIT_S = 20.0


class Silence:
    """How long there was no sign of life, in seconds that this process lived through."""

    def __init__(self, hang_timeout_s: int | str) -> None:
        self._fixed = None if hang_timeout_s == "auto" else float(hang_timeout_s)
        self._has_beaten = False
        self._longest_gap_s: float | None = None
        self.seconds = 0.0

    @property
    def limit_s(self) -> float:
        """How long is a hang: as configured, or far more than any gap between beats so far."""
        if self._fixed is not None:
            return min(self._fixed, MAX_LIMIT_S)
        if self._longest_gap_s is None:
            return MAX_LIMIT_S
        return min(max(LEARNED_FACTOR * self._longest_gap_s, MIN_LEARNED_S), MAX_LIMIT_S)

    @property
    def is_hang(self) -> bool:
        return self.seconds > self.limit_s

    @property
    def is_suspicious(self) -> bool:
        """Whether to look if another rank found a hang, whose limit may be shorter."""
        return self.seconds > self.limit_s / 4

    def tick(self, elapsed_s: float, has_beaten: bool) -> None:
        """Take in what happened since the last tick."""
        self.seconds += min(elapsed_s, MAX_TICK_S)
        if not has_beaten:
            return
        # What came before the first beat was start-up, and says nothing of the steps.
        if self._has_beaten:
            self._longest_gap_s = max(self._longest_gap_s or 0.0, self.seconds)
        self._has_beaten = True
        self.seconds = 0.0


class Watchdog:
    """Watches the training loop while the context is open; `beat` is the sign of life."""

    def __init__(self, job: Job) -> None:
        self._rank, self._world_size = job.context.rank, job.context.world_size
        self._run_dir, self._attempt = job.run.dir, job.run.attempt
        self._attempt_dir = self._run_dir.attempt(self._attempt)
        self._silence = Silence(job.run.spec.launch.hang_timeout_s)
        self._beat: tuple[str, int | None] = ("start of the loop", None)
        self._is_over = threading.Event()
        self._is_called = threading.Event()
        self._scout: threading.Thread | None = None
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        # Its C handler needs no GIL, so a rank that is stuck in C shows where. Also for people.
        faulthandler.register(signal.SIGQUIT, file=2, all_threads=False)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def beat(self, what: str, step: int) -> None:
        """Show a sign of life: `what` begins in `step`. Costs an attribute write."""
        self._beat = (what, step)

    def _watch(self) -> None:
        seen, last = self._beat, time.monotonic()
        while not self._is_over.wait(TICK_S):
            beat, now = self._beat, time.monotonic()
            # `is`: the loop may well repeat itself, but each beat is a tuple of its own.
            self._silence.tick(now - last, beat is not seen)
            seen, last = beat, now
            if self._silence.is_hang or (self._silence.is_suspicious and self._look()):
                self._end()

    def _look(self) -> bool:
        """Whether another rank has called; looked for in a thread that a dead disk may keep."""
        if self._scout is None or not self._scout.is_alive():
            self._scout = threading.Thread(target=self._look_once, daemon=True)
            self._scout.start()
        return self._is_called.is_set()

    def _look_once(self) -> None:
        with contextlib.suppress(OSError):
            see_new_files(self._attempt_dir.path)
            if self._attempt_dir.hang.exists():
                self._is_called.set()

    def _end(self) -> None:
        """End this rank, whatever its main thread does meanwhile."""
        leaving.acquire()
        where, is_waiting = place_of_main_thread()
        host, (what, step) = socket.gethostname(), self._beat
        finding = Finding(self._rank, host, os.getpid(), what, step, where, is_waiting)
        stacks = stacks_of_all_threads()
        self._error = Hang(f"{self._head()}; {self._attempt_dir.path} is out of reach")
        within(CONSULT_LIMIT_S, lambda: self._consult(finding, stacks))
        fail(self._error, self._rank, self._attempt_dir)

    def _head(self) -> str:
        return (
            f"no progress for {self._silence.seconds:.0f} s (limit {self._silence.limit_s:.0f} s)"
        )

    def _consult(self, finding: Finding, stacks: str) -> None:
        """Answer with stacks and a record, then find out with the others who is at fault."""
        tell(f"trainer: rank {self._rank}: {self._head()}, its stacks:\n{stacks}", sys.stderr)
        with contextlib.suppress(OSError):
            record = {"time": round(time.time(), 3), **finding._asdict()}
            write_json(self._attempt_dir.rank_hang(self._rank), record)
            self._error = self._decide() if self._call() else self._await_decision()

    def _call(self) -> bool:
        """Call all ranks; whether this one was the first, and so has to decide."""
        try:
            os.close(os.open(self._attempt_dir.hang, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            return False
        return True

    def _decide(self) -> Hang:
        """Wait for the others' answers, publish the verdict, and end who is silent."""
        findings: dict[int, Finding] = {}
        deadline = time.monotonic() + GRACE_S
        while len(findings) < self._world_size and time.monotonic() < deadline:
            time.sleep(POLL_S)
            see_new_files(self._attempt_dir.path)
            for rank in set(range(self._world_size)) - findings.keys():
                record = read_json(self._attempt_dir.rank_hang(rank))
                if record is not None:
                    findings[rank] = Finding(*(record[name] for name in Finding._fields))
        missing = set(range(self._world_size)) - findings.keys()
        silent = {rank: process_of(self._run_dir, self._attempt, rank) for rank in missing}
        text = f"{self._head()}: {verdict(findings, silent)}"
        record = {"rank": self._rank, "error": text, "silent": sorted(silent)}
        write_json(self._attempt_dir.hang, record)
        end_siblings(silent.values())
        return Hang(text)

    def _await_decision(self) -> Hang:
        """The verdict of the rank that called; it may fail to reach one."""
        decided = None
        deadline = time.monotonic() + 2 * GRACE_S
        while decided is None and time.monotonic() < deadline:
            time.sleep(POLL_S)
            with contextlib.suppress(ValueError):  # empty until then
                decided = read_json(self._attempt_dir.hang)
        if decided is None:
            return PeerHang(
                f"{self._head()}: another rank found that, too, and did not get further"
            )
        silent = [process_of(self._run_dir, self._attempt, rank) for rank in decided["silent"]]
        end_siblings(silent)
        return PeerHang(f"found by rank {decided['rank']}: {decided['error']}")


def see_new_files(directory: Path) -> None:
    """Have an NFS client ask the server what is new in a directory, which opening it does."""
    os.close(os.open(directory, os.O_RDONLY | os.O_DIRECTORY))
