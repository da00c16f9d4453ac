"""Reads from /proc who started a process, when, which processes it started, and whether it runs.

Source: proc(5), /proc/PID/stat. Standard library only; the trainer imports this module.
"""

import contextlib
import os
from collections.abc import Collection
from pathlib import Path

# So long a start may stand still: ranks and torchrun then wait for each other, or for a lock.
STILL_LIMIT_S = 100.0
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


def parent_of(pid: int) -> int | None:
    """Return the pid of a process's parent; None if the process is gone."""
    fields = _stat(pid)
    return int(fields[1]) if fields else None


def children(*parents: int) -> list[int]:
    """Return the pids of the children of these processes.

    Source: proc(5), /proc/PID/task/TID/children; a kernel may be built without this file.
    """
    if not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
        pids = (int(entry) for entry in os.listdir("/proc") if entry.isdigit())
        return [pid for pid in pids if parent_of(pid) in parents]
    found: list[int] = []
    for parent in parents:
        with contextlib.suppress(OSError):  # it ends meanwhile
            files = Path(f"/proc/{parent}/task").glob("*/children")
            found += [int(pid) for file in files for pid in _read(str(file)).split()]
    return found


class Standstill:
    """How long no main thread of some processes has run, nor waited for a disk.

    Source: Linux, Documentation/scheduler/sched-stats.rst, /proc/PID/schedstat; proc(5), state D.
    Where the kernel does not count the time of a process: 0 s.
    """

    def __init__(self) -> None:
        self.seconds, self._ran_ns = 0.0, 0

    def add(self, elapsed_s: float, pids: Collection[int]) -> float:
        """Return the seconds, with those since the last call unless one of these has run since."""
        before = self._ran_ns
        read = [_read(f"/proc/{pid}/schedstat").split() for pid in pids]
        self._ran_ns = sum(int(numbers[0]) for numbers in read if numbers)
        is_still = 0 != self._ran_ns == before and not any("D" in _stat(pid)[:1] for pid in pids)
        self.seconds = self.seconds + elapsed_s if is_still else 0.0
        return self.seconds


def start_of(pid: int) -> str:
    """Return when a process started: the id of the boot and clock ticks since it; "" if it is gone.

    Source: random(4), /proc/sys/kernel/random/boot_id.
    """
    fields = _stat(pid)
    # A zombie (X, 0 threads while it is reaped) is gone, unless it has threads that have not ended.
    is_gone = not fields or (fields[0] in "XZ" and fields[17] in "01")
    return "" if is_gone else f"{_read(_BOOT_ID).decode().strip()} {fields[19]}"


def may_be_same(start: str, other: str) -> bool:
    """Return whether two of `start_of` may be one process's: a host may not show its boot id."""
    (boot, _, ticks), (other_boot, _, other_ticks) = start.rpartition(" "), other.rpartition(" ")
    return ticks == other_ticks != "" and (boot == other_boot or "" in (boot, other_boot))


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third one on; [] if the process is gone."""
    # The second field, the name, may hold spaces and brackets.
    return _read(f"/proc/{pid}/stat").decode("utf-8", "replace").rpartition(")")[2].split()


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""
