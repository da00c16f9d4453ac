"""Reads from /proc who started a process, which processes it started, when, with which variables.

Source: proc(5), /proc/PID/stat. Standard library only; the trainer imports this module.
"""

from __future__ import annotations

import contextlib
import functools
import os
from pathlib import Path


def parent_of(pid: int) -> int | None:
    """Return the pid of a process's parent; None if the process is gone."""
    fields = _stat(pid)
    return int(fields[1]) if fields else None


def children(*parents: int) -> list[int]:
    """Return the pids of the children of these processes.

    Source: proc(5), /proc/PID/task/TID/children; a kernel may be built without this file.
    """
    if not _has_children_files():
        pids = (int(entry) for entry in os.listdir("/proc") if entry.isdigit())
        return [each for each in pids if parent_of(each) in parents]
    child_pids = []
    for parent in parents:
        with contextlib.suppress(OSError):  # the process, or a thread of it, has ended
            for thread in os.listdir(f"/proc/{parent}/task"):
                path = Path(f"/proc/{parent}/task/{thread}/children")
                child_pids += [int(pid) for pid in path.read_text(encoding="ascii").split()]
    return child_pids


def descendants(parent: int) -> list[int]:
    """Return the pids of all processes below a process."""
    pids: list[int] = []
    row = children(parent)
    while row:
        pids += row
        row = children(*row)
    return pids


@functools.cache
def _has_children_files() -> bool:
    return Path(f"/proc/self/task/{os.getpid()}/children").exists()


def start_of(pid: int) -> str:
    """Return when a process started, in clock ticks since boot; empty if the process is gone."""
    fields = _stat(pid)
    return fields[19] if fields else ""


def is_hidden(pid: int) -> bool:
    """Return whether another user's process exists that /proc does not show to this user.

    Source: proc(5), hidepid; kill(2), EPERM.
    """
    try:
        os.kill(pid, 0)
    except PermissionError:
        return not os.path.exists(f"/proc/{pid}")
    except OSError:
        pass
    return False


def has_ended(pid: int) -> bool:
    """Return whether a process is gone, or ends and has no memory any more."""
    try:
        os.readlink(f"/proc/{pid}/exe")
    except FileNotFoundError:
        return True
    except OSError:  # another user's
        pass
    return False


def environment(pid: int) -> list[bytes]:
    """Return `NAME=VALUE` for each variable that a process was started with; [] if unreadable."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def variable(pid: int, name: str) -> str | None:
    """Return a variable that a process was started with; None without it, or if unreadable."""
    start = f"{name}=".encode()
    values = [each.removeprefix(start) for each in environment(pid) if each.startswith(start)]
    return os.fsdecode(values[0]) if values else None


def catches(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal. Source: proc(5), SigCgt."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    caught = status.partition("\nSigCgt:")[2].split()
    return bool(caught) and bool(int(caught[0], 16) >> (number - 1) & 1)


def usage(pid: int) -> tuple[str, int]:
    """Return a process's state, a letter, and its processor time in clock ticks; "", 0 if gone.

    With the time of its children that it has waited for.
    """
    fields = _stat(pid)
    return (fields[0], sum(map(int, fields[11:15]))) if fields else ("", 0)


def has_mapped(pid: int, part: bytes) -> bool:
    """Return whether a process has a file in its memory, such as a library, with `part` in it."""
    try:
        return part in Path(f"/proc/{pid}/maps").read_bytes()
    except OSError:
        return False


def command_line(pid: int) -> list[str]:
    """Return the words with which a process was started; [] if it is gone or unreadable."""
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    return text.decode("utf-8", "replace").rstrip("\0").split("\0") if text else []


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third one on; [] if the process is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    # The second field, the name, may hold spaces and brackets.
    return stat.rpartition(")")[2].split()
