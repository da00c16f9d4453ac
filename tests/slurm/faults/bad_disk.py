"""A model in whose saves the disk fails, of all ranks or of one, while a file names the error."""

import errno
import os
import threading
from pathlib import Path
from typing import Any

from slurm_job_kit.jobs import shared_files

from ..paced import Paced

_WRITER = "checkpoint-writer"  # the thread's name


class BadDisk(Paced):
    """Paced; in the first attempt saves fail with the error that ERRNO_FILE names.

    After a space it may hold the name of the only file that fails, such as that of one rank.
    """

    def __init__(self) -> None:
        super().__init__()
        file, fsync = Path(os.environ["ERRNO_FILE"]), os.fsync

        def failing_fsync(fd: Any) -> None:
            is_writer = threading.current_thread().name.startswith(_WRITER)
            if is_writer and os.environ["KIT_ATTEMPT"] == "1" and shared_files.exists(file):
                error, _, name = file.read_text().partition(" ")  # "" while the test writes it
                if error and name in ("", os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))):
                    number = getattr(errno, error)
                    raise OSError(number, os.strerror(number))
            fsync(fd)

        os.fsync = failing_fsync
