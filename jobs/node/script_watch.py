"""Notices that no rank of a user's script or module writes any more: launch.hang_timeout_s.

The agent of the first node looks at the logs of all ranks and at what kit_stop.py reports. If
nothing of it changes for that long it writes `hang.json` and an error record. Every agent that sees
`hang.json` sends its ranks SIGABRT: Python then writes their stacks to their logs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Sequence

from .. import records, shared_files
from ..kinds import Kind
from ..records.nodes import HangConclusion, RankError
from ..records.training import read_events
from ..rundir import RunDir
from ..stop_signals import send
from .torchrun import Node

LOOK_S = 5.0
ABORT_LIMIT_S = 30.0


class ScriptWatch:
    """Watches the ranks of an attempt from `begin` to `close`."""

    def __init__(self, run_dir: RunDir, attempt: int, node: Node, limit_s: float) -> None:
        self.is_hang_found = threading.Event()
        self._run_dir, self._attempt_dir = run_dir, run_dir.attempt(attempt)
        self._node, self._limit_s = node, limit_s
        self._is_closed = threading.Event()
        self._aborted: float | None = None

    def begin(self) -> None:
        """Watch in a thread: a disk may block it for ever, and the agent passes on the stops."""
        threading.Thread(target=self._watch, daemon=True).start()

    def close(self) -> None:
        """End nothing from now on."""
        self._is_closed.set()

    def end_hang(self, ranks: Sequence[int]) -> bool:
        """Once a hang was found, abort the ranks; return whether that has taken too long."""
        if self.is_hang_found.is_set() and self._aborted is None:
            self._aborted = time.monotonic()
            send(signal.SIGABRT, ranks)
        return self._aborted is not None and time.monotonic() > self._aborted + ABORT_LIMIT_S

    def _watch(self) -> None:
        look_s = min(LOOK_S, self._limit_s / 4)
        quiet_s = 0.0
        before: tuple[tuple[int, int], ...] = ()
        while not self._is_closed.wait(look_s):
            with contextlib.suppress(OSError):  # the next look may succeed
                # In steps: time in which the job was suspended does not count.
                now = self._signs() if self._node.rank == 0 else ()
                quiet_s, before = quiet_s + look_s if now and now == before else 0.0, now
                if quiet_s > self._limit_s:
                    self._record_hang()
                if shared_files.exists(self._attempt_dir.hang):
                    # At the same moment on each node: once one has failed, Slurm ends the others,
                    # whose ranks could not write their stacks any more.
                    wait_s = os.stat(self._attempt_dir.hang).st_mtime + 2 * look_s - time.time()
                    self._is_closed.wait(min(max(wait_s, 0.0), 2 * look_s))
                    self.is_hang_found.set()
                    return

    def _signs(self) -> tuple[tuple[int, int], ...]:
        """Return size and time of each rank's log and of the two reports; () without a log."""
        logs = shared_files.files_in(self._attempt_dir.path, "rank-*.log")
        reports = filter(shared_files.exists, (self._run_dir.progress, self._run_dir.saved))
        stats = [os.stat(path) for path in (*logs, *reports)] if logs else []
        return tuple((each.st_size, each.st_mtime_ns) for each in stats)

    def _record_hang(self) -> None:
        error = (
            f"no output and no report of any rank for {self._limit_s:.0f} s "
            "(launch.hang_timeout_s); the stacks are at the end of the ranks' logs"
        )
        events = read_events(self._run_dir.timeline("rank-00000"))
        spawned = [each.host for each in events if each.event == "spawn"]
        host = (spawned and spawned[-1]) or self._node.host  # torchrun chooses where rank 0 runs
        first = RankError(time.time(), 0, host, error, kind=Kind.HANG)
        records.write(self._attempt_dir.rank_error(0), first)
        records.write(self._attempt_dir.hang, HangConclusion(0, error, ()))
