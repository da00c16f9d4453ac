"""Memory of this node: what the kernel killed for lack of it, and what is free. Standard library.

Slurm cannot answer that when an attempt is closed: the job is RUNNING with Reason None, and the
srun step is gone. Later the job is FAILED, not OUT_OF_MEMORY, unless the kernel killed the batch
shell itself (measured: Slurm 22.05, task/cgroup with ConstrainRAMSpace). The cgroup of the srun
task counts the kills. Slurm removes that cgroup when the agent ends, so the agent reads the counter
itself: before torchrun starts and after torchrun has ended.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

# The file with the counter, by the type of the cgroup's file system. Both versions count kills for
# the cgroup's own limit and for the machine's. Source: cgroup-v1/memory.txt and cgroup-v2.rst of
# the kernel.
_COUNTERS = {"cgroup": "memory.oom_control", "cgroup2": "memory.events"}
# Limit, use, and the name in memory.stat of the file pages that the kernel can free at once.
_LIMITS = {
    "memory.oom_control": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    "memory.events": ("memory.max", "memory.current", "inactive_file"),
}
_NUMBER = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def oom_kills(proc: Path = Path("/proc/self")) -> int | None:
    """Return how many kills this process's cgroup has had so far; None without a counter."""
    try:
        mounts = (proc / "mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
        groups = (proc / "cgroup").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    for counter in _counters(mounts, groups):
        try:
            members = (counter.parent / "cgroup.procs").read_text(encoding="ascii").split()
            match = _NUMBER.search(counter.read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue
        # In another mount or cgroup namespace the path may lead to the cgroup of other processes.
        if match and str(os.getpid()) in members:
            return int(match[1])
    return None


def free_bytes(proc: Path = Path("/proc/self")) -> int:
    """Return the bytes this process may still use: of the machine, and of each cgroup around it."""
    free = []
    with contextlib.suppress(OSError, ValueError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    with contextlib.suppress(OSError):
        mounts = (proc / "mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
        groups = (proc / "cgroup").read_text(encoding="utf-8", errors="surrogateescape")
        for counter in _counters(mounts, groups):
            free += [_free_in(folder, counter.name) for folder in counter.parents]
    return min(free, default=0)


def limit_bytes(proc: Path = Path("/proc/self")) -> int | None:
    """Return the lowest limit of cgroups around this process; None if none is below the machine."""
    limits = []
    with contextlib.suppress(OSError):
        mounts = (proc / "mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
        groups = (proc / "cgroup").read_text(encoding="utf-8", errors="surrogateescape")
        for counter in _counters(mounts, groups):
            for folder in counter.parents:
                with contextlib.suppress(OSError, ValueError):
                    limits.append(int((folder / _LIMITS[counter.name][0]).read_text("ascii")))
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    lowest = min(limits, default=machine)
    return lowest if lowest < machine else None


def _free_in(cgroup: Path, counter: str) -> int:
    """Return the bytes that are free in one cgroup; very many where it has no limit."""
    limit, usage, cache = _LIMITS[counter]
    with contextlib.suppress(OSError, ValueError):
        stat = (cgroup / "memory.stat").read_text(encoding="ascii").splitlines()
        cached = sum(int(line.split()[1]) for line in stat if line.split()[0] == cache)
        used = int((cgroup / usage).read_text(encoding="ascii")) - cached
        return int((cgroup / limit).read_text(encoding="ascii")) - used
    return sys.maxsize


def _counters(mounts: str, groups: str) -> Iterator[Path]:
    """Yield possible paths of the counter, one for each mount of a memory controller, v1 first."""
    entries = [line.split(" - ") for line in mounts.splitlines() if " - " in line]
    for kind, group in sorted(_groups(groups).items()):
        for place, what in entries:
            root, mount_point = place.split()[3:5]
            fstype, _, options = what.split(maxsplit=2)
            if fstype != kind or (kind == "cgroup" and "memory" not in options.split(",")):
                continue
            inside = group if root == "/" else group.removeprefix(root)
            yield Path(mount_point, inside.lstrip("/"), _COUNTERS[kind])


def _groups(text: str) -> dict[str, str]:
    """Return the cgroup of this process by file system type, from the text of /proc/self/cgroup."""
    groups = {}
    for line in text.splitlines():
        number, controllers, group = line.split(":", 2)
        if "memory" in controllers.split(","):
            groups["cgroup"] = group
        elif number == "0" and not controllers:
            groups["cgroup2"] = group
    return groups
