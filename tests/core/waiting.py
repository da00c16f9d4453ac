"""Waits for a condition, and whether a process runs."""

import time
from pathlib import Path


def wait_for(condition, what="", limit_s=100):
    """Wait until a condition holds; returns its value."""
    deadline = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < deadline, what or condition
        time.sleep(0.01)
    return found


def is_running(pid):
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:  # it may end between the two
        return False
