"""Talks to the user on stderr, and never fails at it: the disk below a log may be full.

Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

STDERR = 2


def say(text: str) -> None:
    """Write a line to stderr, as far as that is possible.

    Around Python's buffer: what stays in it fails once more at exit, with exit status 120.
    """
    with contextlib.suppress(OSError):
        os.write(STDERR, f"{text}\n".encode("utf-8", "backslashreplace"))


def hang_up() -> None:
    """Let stdout and stderr go nowhere from now on: nobody listens any more."""
    nobody = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nobody, sys.stdout.fileno())
    os.dup2(nobody, sys.stderr.fileno())
    os.close(nobody)


def counted(number: int, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


class BestEffort:
    """Blocks that may fail for want of a disk; the first failure is told, none is raised."""

    def __init__(self, who: str) -> None:
        self._who = who
        self._is_told = False

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """A block whose OSError is at most said."""
        try:
            yield
        except OSError as error:
            if not self._is_told:
                say(f"{self._who}: going on without its records: {error}")
                self._is_told = True
