"""Settings of a process that only prctl(2) has. Standard library only.

Source of the numbers: linux/prctl.h.
"""

import ctypes
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from .stop_signals import end_at_stop_signals

PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 1, 15, 36


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies, even by SIGKILL."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def begin_child() -> None:
    """In a new process before exec: die with this one, and let stop signals end the program."""
    die_with_parent()
    end_at_stop_signals()


def set_name(name: str) -> None:
    """Give this process the name that `ps -o comm` shows: at most 15 bytes."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode())


@contextmanager
def adopted_orphans() -> Iterator[None]:
    """Run a block in which descendants whose parent ends become children of this process.

    The kernel does it before the parent's end can be waited for.
    """
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0)
