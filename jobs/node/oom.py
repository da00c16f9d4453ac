"""Whether the kernel killed a process of this node for want of memory. Standard library only.

At the moment an attempt is closed Slurm does not know: the job is RUNNING with Reason None, the
step is gone, and in the end the job is FAILED, not OUT_OF_MEMORY, unless the batch shell itself
was killed (measured, Slurm 22.05, task/cgroup with ConstrainRAMSpace). What knows is the counter of
the task's cgroup, and that cgroup is gone with the agent: so the agent reads it, before torchrun
starts and after it has ended.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

# The file that counts, by the type of the cgroup's file system. Source: cgroup-v1/memory.txt and
# cgroup-v2.rst of the kernel; both count whoever killed, the cgroup's own limit or the machine's.
_COUNTERS = {"cgroup": "memory.oom_control", "cgroup2": "memory.events"}
_NUMBER = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def oom_kills(proc: Path = Path("/proc/self")) -> int | None:
    """How many processes of this process's cgroup were killed so far; None if nobody counts."""
    try:
        mounts = (proc / "mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
        groups = (proc / "cgroup").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    for counter in _counters(mounts, groups):
        try:
            members = (counter.parent / "cgroup.procs").read_text(encoding="ascii").split()
            found = _NUMBER.search(counter.read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue
        # A path that is right in another namespace may lead to somebody else's cgroup here.
        if found and str(os.getpid()) in members:
            return int(found[1])
    return None


def _counters(mounts: str, groups: str) -> Iterator[Path]:
    """Where the counter may be: for each mount of a memory controller, version 1 first."""
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
    """The cgroup of this process by the type of file system, from /proc/self/cgroup."""
    found = {}
    for line in text.splitlines():
        number, controllers, group = line.split(":", 2)
        if "memory" in controllers.split(","):
            found["cgroup"] = group
        elif number == "0" and not controllers:
            found["cgroup2"] = group
    return found
