"""Ends an attempt in which no rank makes progress, and names the rank that the others wait for.

A thread of each rank, from before its import of torch to its end. The rank's main thread beats
when it begins a phase of the start-up, a batch, an evaluation or a save. The thread counts
its own ticks since the last beat: a job that was suspended (`scontrol suspend`, SIGSTOP) did not
tick, so a suspension is no hang. The first rank over its limit creates `hang.json`. Every rank
that sees the file writes its stacks to its log and its state to a file. A rank that writes no
state is stopped, or is stuck in C code that holds the GIL.

Imports no torch: the import of torch itself may hang.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ....jobs.base import procfs
from ....jobs.contract.records.nodes import HangConclusion
from ...contract import AttemptDir, RecordError, RunDir, files, node_name, records
from ...errors import exit_lock, fail, log, run_with_timeout, write_text
from ...hooks import Callback
from ...process.watcher import Pulse
from .diagnosis import (
    RankHang,
    diagnose,
    end_siblings,
    laggards,
    place_of,
    place_of_main_thread,
    stacks_of_all_threads,
)
from .failures import BadNode, Hang, PeerHang
from .phases import BEFORE_DATA, DEVICE_TEST, NAMES, limit_s

if TYPE_CHECKING:
    import torch

    from ...process.run_handle import RankContext, RankProcess

TICK_S = 1.0
POLL_S = 0.25
MAX_TICK_S = 2.0  # a longer tick was a suspension, or other processes took the cores
# The ranks' ticks and limits differ, and network file systems show a new file late.
GRACE_S = 5.0


class IdleTimer:
    """Seconds since the last beat, counted only while this process ran, and their limit."""

    def __init__(self, hang_timeout_s: int | str = "auto") -> None:
        self.hang_timeout_s = hang_timeout_s
        self.seconds = 0.0
        self._still_s = 0.0
        self.phase = NAMES[0]
        self._start_up_s = 0.0

    @property
    def limit_s(self) -> float:
        """How many seconds without a beat are a hang."""
        if self._still_s > procfs.STILL_LIMIT_S:
            return procfs.STILL_LIMIT_S
        return limit_s(self.phase, self.hang_timeout_s)

    @property
    def is_in_start_up(self) -> bool:
        """Whether the last beat began a phase of the start-up."""
        return self.phase in NAMES

    @property
    def is_suspicious(self) -> bool:
        """Whether another rank, with an earlier limit, may have found a hang.

        In the start-up the time of all its phases counts: a slow rank may just have begun to wait
        for a rank that hangs since the first phase.
        """
        return max(self.seconds, self._start_up_s) > self.limit_s / 4

    def tick(self, elapsed_s: float, begun: str | None, still_s: float = 0.0) -> None:
        """Add the time since the last tick.

        begun: what the last beat began, None without one. still_s: how long no rank has run.
        """
        lived_s = min(elapsed_s, MAX_TICK_S)
        self.seconds += lived_s
        self._still_s = still_s
        self._start_up_s = self._start_up_s + lived_s if self.is_in_start_up else 0.0
        if begun is not None:
            self.phase = begun
            self.seconds = 0.0


class Watchdog(Callback):
    """Watches the pulse of this rank from `start` on; tests its node once it is connected."""

    def __init__(self, rank: int, world_size: int, pulse: Pulse) -> None:
        self._rank, self._world_size, self._pulse = rank, world_size, pulse
        self._attempt_dir: AttemptDir | None = None
        self._timer = IdleTimer()
        self._is_hang_found = threading.Event()
        self._poll_thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to watch; with the other ranks if the node's agent has started this one."""
        if sys.argv[1:] and {"KIT_ATTEMPT", "KIT_HANG_TIMEOUT_S"} <= os.environ.keys():
            limit = os.environ["KIT_HANG_TIMEOUT_S"]
            run_dir = RunDir(Path(sys.argv[1]).resolve())
            limit_s = limit if limit == "auto" else int(limit)
            self.open(run_dir, int(os.environ["KIT_ATTEMPT"]), limit_s)
        # faulthandler's C handler needs no GIL, so a rank that is stuck in C writes its stack, too.
        # A person may also send the signal.
        faulthandler.register(signal.SIGQUIT, file=2, all_threads=False)
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def open(self, run_dir: RunDir, attempt: int, hang_timeout_s: int | str) -> None:
        """From now on exchange states with the other ranks in a run directory.

        Before this call each rank finds and reports a hang without the others.
        """
        self._timer.hang_timeout_s = hang_timeout_s
        self._attempt_dir = run_dir.attempt(attempt)

    def connected(self, rank: RankProcess, device: torch.device) -> None:
        """Test all nodes together. Raises: BadNode, PeerBadNode."""
        from .preflight import preflight  # imports torch

        preflight(rank, device)

    def opened(self, context: RankContext) -> None:
        """Exchange states with the other ranks from now on."""
        run = context.run
        self.open(run.dir, run.attempt, run.spec.launch.hang_timeout_s)

    def _watch(self) -> None:
        seen, last, still = self._pulse.now, time.monotonic(), procfs.Standstill()
        # Of several nodes none sees whether the ranks of another one run.
        has_all_ranks = os.environ.get("LOCAL_WORLD_SIZE") == str(self._world_size)
        while True:
            time.sleep(TICK_S)
            beat, now = self._pulse.now, time.monotonic()
            still_s = 0.0
            if has_all_ranks and self._timer.phase in BEFORE_DATA:
                still_s = still.add(min(now - last, MAX_TICK_S), procfs.children(os.getppid()))
            # `is not`: the loop may repeat a beat, but each one is a tuple of its own.
            self._timer.tick(now - last, beat[0] if beat is not seen else None, still_s)
            seen, last = beat, now
            timer = self._timer
            if timer.seconds > timer.limit_s or (timer.is_suspicious and self._poll()):
                self._end()

    def _poll(self) -> bool:
        """Return whether another rank found a hang; a dead disk blocks only the polling thread."""
        if not (self._poll_thread and self._poll_thread.is_alive()):
            self._poll_thread = threading.Thread(target=self._poll_once, daemon=True)
            self._poll_thread.start()
        return self._is_hang_found.is_set()

    def _poll_once(self) -> None:
        with contextlib.suppress(OSError):
            if self._attempt_dir is not None and files.exists(self._attempt_dir.hang):
                self._is_hang_found.set()

    def _end(self) -> None:
        """Report the hang and exit, whatever the main thread does meanwhile."""
        exit_lock.acquire()
        where, is_waiting = place_of_main_thread()
        host, (what, step) = node_name(), self._pulse.now
        state = RankHang(self._rank, host, os.getpid(), what, step, where, is_waiting)
        stacks = stacks_of_all_threads()
        self._error: Exception = Hang(f"{self._head()}; its disk is out of reach")
        run_with_timeout(20.0, lambda: self._report(state, stacks))
        fail(self._error, self._rank, self._attempt_dir)

    def _head(self) -> str:
        idle = self._timer
        limit = f"no progress for {idle.seconds:.0f} s (limit {idle.limit_s:.0f} s)"
        return f"{limit} in {idle.phase}" if idle.is_in_start_up else limit

    def _report(self, state: RankHang, stacks: str) -> None:
        """Write this rank's stacks to its log, then find out with the others which rank hangs."""
        log(f"trainer: rank {self._rank}: {self._head()}, its stacks:", sys.stderr)
        write_text(f"{stacks}\n", sys.stderr)
        if state.what == DEVICE_TEST:  # there a rank waits for its own device only
            self._error = BadNode(f"preflight: {self._head()}: the device does not answer")
        elif self._attempt_dir is None:
            self._error = Hang(f"{self._head()}: it is at {state.where}")
        else:
            self._error = Hang(f"{self._head()}; {self._attempt_dir.path} is out of reach")
            with contextlib.suppress(OSError):
                self._error = self._exchange_states(self._attempt_dir, state)

    def _exchange_states(self, attempt_dir: AttemptDir, state: RankHang) -> Hang:
        """Publish this rank's state; the first rank to find the hang draws the conclusion."""
        records.write(RankHang.path(attempt_dir, self._rank), state)
        try:
            os.close(os.open(attempt_dir.hang, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        except FileExistsError:
            return self._await_conclusion(attempt_dir)
        return self._conclude(attempt_dir)

    def _conclude(self, attempt_dir: AttemptDir) -> Hang:
        """Wait for the states of all ranks, publish which hang, kill those of this node."""
        states: dict[int, RankHang] = {}
        missing = {*range(self._world_size)}
        deadline = time.monotonic() + GRACE_S
        while missing and time.monotonic() < deadline:
            time.sleep(POLL_S)
            names = files.names_in(attempt_dir.path)
            for rank in tuple(missing):
                path = RankHang.path(attempt_dir, rank)
                state = records.read(RankHang, path) if path.name in names else None
                if state is not None:
                    states[rank] = state
                    missing.remove(rank)
        unresponsive = {rank: place_of(attempt_dir, rank) for rank in missing}
        text = f"{self._head()}: {diagnose(states, unresponsive)}"
        silent = tuple(sorted(unresponsive))
        behind = [] if silent else laggards(states.values())
        waited_for = silent or tuple(state.rank for state in behind)
        hosts = sorted(
            {each.host for each in unresponsive.values()} | {each.host for each in behind}
        )
        place = behind[0].where.partition(" ")[0] if behind else None
        conclusion = HangConclusion(self._rank, text, silent, waited_for, tuple(hosts), place)
        records.write(attempt_dir.hang, conclusion)
        end_siblings(unresponsive.values())
        return Hang(text)

    def _await_conclusion(self, attempt_dir: AttemptDir) -> Hang:
        """Return the conclusion of the rank that found the hang first; it may die before."""
        concluded = None
        deadline = time.monotonic() + 2 * GRACE_S
        while concluded is None and time.monotonic() < deadline:
            time.sleep(POLL_S)
            with contextlib.suppress(RecordError):  # the file is empty until the conclusion
                concluded = records.read(HangConclusion, attempt_dir.hang)
        if concluded is None:
            return PeerHang(f"{self._head()}: the rank that found it first wrote no conclusion")
        end_siblings(place_of(attempt_dir, rank) for rank in concluded.unresponsive)
        return PeerHang(f"found by rank {concluded.rank}: {concluded.error}")
