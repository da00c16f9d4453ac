"""What a user's script leaves running when it exits with 0: its wrapper waits for what works.

A script may start its training in the background and exit. It may as well leave a TensorBoard, a
logger or idle workers behind, which must not keep a complete run alive. What works is told by the
processor time, and by torch among the loaded libraries. Standard library only.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass

from .. import procfs
from ..rundir import AttemptDir

SAMPLE_S = 1.0
WINDOW = 10  # samples
# A process with torch loaded may wait that many windows for its peers, or for data.
IDLE_WINDOWS = 30
# The share of a core at which a process works: with torch loaded, and any other one, such as a
# Python that imports torch, or prepares data. A TensorBoard uses some percent.
TORCH_SHARE, OTHER_SHARE = 0.05, 0.5
# A helper may die of its parent's end.
_BY_PARENTS_END = (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE, signal.SIGTERM)
_MAX_SHOWN = 60  # characters of a command


def wait_for(script: int) -> int:
    """Wait for the end of a child; returns its exit code (-N: killed by signal N).

    The child stays a zombie, so that all can see that it has ended: see agent.scripts_of. Adopted
    children that end before it are removed.
    """
    while True:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        if ended.si_pid == script:
            return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        os.waitpid(ended.si_pid, 0)


def outlasting(script: int, attempt_dir: AttemptDir) -> tuple[int, str]:
    """Wait for what a script, which has exited with 0, left working.

    Returns the exit code of the first that failed, or 0 and the commands of those that still run.
    Nothing is waited for once the marker says how the script ended. At a stop only a process with
    torch loaded is, which may be saving.
    """
    left: dict[int, _Left] = {}
    while not os.path.exists(attempt_dir.outcome):  # no error where the file server has one
        for pid in children_but(script):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended:
                left.setdefault(pid, _Left(pid)).look()
                continue
            code, has_torch = os.waitstatus_to_exitcode(status), pid in left and left[pid].has_torch
            left.pop(pid, None)
            if code and (has_torch or -code not in _BY_PARENTS_END):
                return code, ""
        is_stopping = os.path.exists(attempt_dir.stop_requested)
        if not any(each.works(is_stopping) for each in left.values()):
            break
        time.sleep(SAMPLE_S)
    return 0, ", ".join(filter(None, map(_command, children_but(script))))


def children_but(script: int) -> list[int]:
    """Return the adopted children of this process."""
    return [pid for pid in procfs.children(os.getpid()) if pid != script]


@dataclass
class _Left:
    """A process that a script left, with its descendants; samples and ticks of this window."""

    pid: int
    ticks: int = -1
    samples: int = 0
    in_use: int = 0  # samples in which a process ran, or waited for a disk
    idle_windows: int = 0
    has_torch: bool = False

    def look(self) -> None:
        """Take a sample. Time in which the job was suspended does not count."""
        pids = [self.pid, *procfs.descendants(self.pid)]
        self.has_torch = self.has_torch or any(procfs.has_mapped(pid, b"/libtorch") for pid in pids)
        uses = [procfs.usage(pid) for pid in pids]
        ticks = sum(each for _, each in uses)
        if self.ticks < 0:
            self.ticks = ticks
            return
        self.samples += 1
        self.in_use += any(state in "RD" for state, _ in uses if state)
        if self.samples == WINDOW:
            used_s = (ticks - self.ticks) / os.sysconf("SC_CLK_TCK")
            # A process that sleeps nearly all the time may be seen running once.
            share = max(used_s / (WINDOW * SAMPLE_S), self.in_use / WINDOW * (self.in_use > 1))
            is_idle = share < (TORCH_SHARE if self.has_torch else OTHER_SHARE)
            self.idle_windows = self.idle_windows + 1 if is_idle else 0
            self.ticks, self.samples, self.in_use = ticks, 0, 0

    def works(self, is_stopping: bool) -> bool:
        """Return whether to wait for it."""
        if is_stopping:
            return self.has_torch and self.idle_windows < 1
        return self.idle_windows < (IDLE_WINDOWS if self.has_torch else 1)


def _command(pid: int) -> str:
    text = " ".join(procfs.command_line(pid))
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
