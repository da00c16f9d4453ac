"""The paced model in a run that is held up where a test wants it: in its start, or by its disk."""

import os
import threading
import time
from pathlib import Path

from ..paced import Paced

_LOOK_S = 0.05
_WRITER = "checkpoint-writer"  # the thread's name; the main thread's own files are not held up


def wait_while(path: Path) -> None:
    """Return when the file is not there."""
    while path.exists():
        time.sleep(_LOOK_S)


class HeldUp(Paced):
    """Paced, not built while START_FILE exists; no checkpoint gets durable while DISK_FILE does.

    The disk that stands still is made of os.fsync, so a save is in flight as long as one likes.
    Parameters have the names of Paced's, as the digest of the weights is over names, too.
    """

    def __init__(self) -> None:
        wait_while(Path(os.environ.get("START_FILE", "/nowhere")))
        super().__init__()
        disk, fsync = Path(os.environ.get("DISK_FILE", "/nowhere")), os.fsync

        def slow_fsync(fd: int) -> None:
            if threading.current_thread().name.startswith(_WRITER):
                wait_while(disk)
            fsync(fd)

        os.fsync = slow_fsync
