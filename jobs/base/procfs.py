"""Reads from /proc who started a process, when, which processes it started, and whether it runs.

Source: proc(5), /proc/PID/stat. Standard library only; the trainer imports this module.
"""

import contextlib
import os
import time
from pathlib import Path

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


def run_ns(*pids: int) -> int:
    """Return for how many nanoseconds the main threads of these processes have run.

    Equal values: none ran in between. Where the kernel does not count it: the present time.
    Source: Linux, Documentation/scheduler/sched-stats.rst, /proc/PID/schedstat.
    """
    read = [_read(f"/proc/{pid}/schedstat") for pid in pids]
    return sum(int(text.split()[0]) for text in read if text) or time.monotonic_ns()


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
