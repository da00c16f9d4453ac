"""The paced model in a run that a test can block: in its start, or in a write to its disk."""

import os
import threading
import time
from pathlib import Path
from typing import Any

from slurm_job_kit.jobs import shared_files

from ..paced import Paced

_LOOK_S = 0.05
_WRITER = "checkpoint-writer"  # the thread's name; writes of the main thread are not blocked


def wait_while(path: Path) -> None:
    """Wait until the file does not exist."""
    while shared_files.exists(path):
        time.sleep(_LOOK_S)


def names(request: Path, fd: int) -> bool:
    """Whether a test's file exists, and holds nothing or the name of this open file."""
    try:
        name = shared_files.read_text(request)
    except FileNotFoundError:
        return False
    return name in ("", os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))


class HeldUp(Paced):
    """Paced; not built while START_FILE exists; no checkpoint is fsynced while DISK_FILE exists.

    os.fsync waits, so that a save is in flight as long as the test wants. DISK_FILE may hold the
    name of the only file of a checkpoint for which it waits, such as that of one rank. The
    parameters have the names of Paced's, because the digest of the weights includes the names.
    """

    def __init__(self) -> None:
        wait_while(Path(os.environ.get("START_FILE", "/nowhere")))
        super().__init__()
        disk, fsync = Path(os.environ.get("DISK_FILE", "/nowhere")), os.fsync

        def slow_fsync(fd: Any) -> None:
            if threading.current_thread().name.startswith(_WRITER):
                while names(disk, fd):
                    time.sleep(_LOOK_S)
            fsync(fd)

        os.fsync = slow_fsync
