"""Reads of a process what /proc knows: its parent, its children, its start. Source: proc(5).

Standard library only.
"""

from __future__ import annotations

import os
from pathlib import Path


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third one on; [] if the process is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    # The second field, the name, may hold blanks and brackets.
    return stat.rpartition(")")[2].split()


def parent_of(pid: int) -> int:
    """The pid of a process's parent; 0 if the process is gone."""
    fields = _stat(pid)
    return int(fields[1]) if fields else 0


def children(pid: int) -> list[int]:
    """The pids of a process's children."""
    pids = (int(entry) for entry in os.listdir("/proc") if entry.isdigit())
    return [each for each in pids if parent_of(each) == pid]


def start_of(pid: int) -> str:
    """When a process started, in clock ticks since boot; empty if the process is gone."""
    fields = _stat(pid)
    return fields[19] if fields else ""
