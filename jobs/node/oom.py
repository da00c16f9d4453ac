"""What the kernel killed on this node for lack of memory, and the limit. Standard library.

Slurm cannot answer that when an attempt is closed: the job is RUNNING with Reason None (measured:
Slurm 22.05, ConstrainRAMSpace). The cgroup of the srun task counts the kills. It ends with the
agent, which reads the counter before torchrun starts and after torchrun has ended.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

# The file with the counter, by the type of the cgroup's file system. Both versions count kills for
# the cgroup's own limit and for the machine's. Source: cgroup-v1/memory.txt and cgroup-v2.rst of
# the kernel.
_COUNTERS = {"cgroup": "memory.oom_control", "cgroup2": "memory.events"}
_LIMITS = {"memory.oom_control": "memory.limit_in_bytes", "memory.events": "memory.max"}
_NUMBER = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def oom_kills(proc: Path = Path("/proc/self")) -> int | None:
    """Return how many kills this process's cgroup has had so far; None without a counter."""
    for counter in _counters(proc):
        with contextlib.suppress(OSError, ValueError):
            members = (counter.parent / "cgroup.procs").read_text(encoding="ascii").split()
            match = _NUMBER.search(counter.read_text(encoding="ascii"))
            # In another mount or cgroup namespace the path may be that of other processes' cgroup.
            if match and str(os.getpid()) in members:
                return int(match[1])
    return None


def limit_bytes(proc: Path = Path("/proc/self")) -> int | None:
    """Return the lowest limit of cgroups around this process; None if none is below the machine."""
    machine = lowest = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for counter in _counters(proc):
        for folder in counter.parents:
            with contextlib.suppress(OSError, ValueError):
                lowest = min(lowest, int((folder / _LIMITS[counter.name]).read_text("ascii")))
    return lowest if lowest < machine else None


def _counters(proc: Path) -> Iterator[Path]:
    """Yield possible paths of the counter, one for each mount of a memory controller, v1 first."""
    try:
        mounts = (proc / "mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
        groups = (proc / "cgroup").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return
    entries = [line.split(" - ") for line in mounts.splitlines() if " - " in line]
    for kind, group in sorted(_groups(groups).items()):
        for place, what in entries:
            root, mount_point = place.split()[3:5]
            fstype, _, options = what.split(" ", 2)  # the source may be empty
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
