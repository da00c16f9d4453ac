"""A model in whose saves the disk of rank 0 fails, while a file names the error."""

import errno
import os
import threading
from pathlib import Path
from typing import Any

from ..paced import Paced

_WRITER = "checkpoint-writer"  # the thread's name


class BadDisk(Paced):
    """Paced; in the first attempt saves fail with the error that ERRNO_FILE names."""

    def __init__(self) -> None:
        super().__init__()
        file, fsync = Path(os.environ["ERRNO_FILE"]), os.fsync

        def failing_fsync(fd: Any) -> None:
            is_writer = threading.current_thread().name.startswith(_WRITER)
            if is_writer and os.environ["KIT_ATTEMPT"] == "1" and file.exists():
                number = getattr(errno, file.read_text())
                raise OSError(number, os.strerror(number))
            fsync(fd)

        os.fsync = failing_fsync
