"""The two kinds of errors that end a command without a traceback, and texts of torch's errors."""

import errno
from typing import Literal

# What a person corrects before the run can go on. None: nothing, or it is not known.
Mistake = Literal["code", "spec"]

# What made a rank fail, where the type of its error or its errno shows it.
Fault = Literal[
    "import",
    "collective",  # of NCCL or gloo
    "device",
    "device_memory",
    "not_finite",
    "superseded",
    # Of the disk below the run directory or the data:
    "disk_full",
    "quota",
    "read_only",
    "disk_error",
    "run_directory_gone",
    "files_missing",
]
# By the errno of an OSError, whatever file it is of.
DISK_FAULTS: dict[int, Fault] = {errno.ENOSPC: "disk_full", errno.EDQUOT: "quota"}
# Errors of a file server or a network, which may work again in the next attempt.
TRANSIENT_ERRNOS = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EREMOTEIO)
# Where the file belongs to the run directory.
RUN_DIR_FAULTS: dict[int, Fault] = {
    **DISK_FAULTS,
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "read_only"),
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR), "run_directory_gone"),
    **dict.fromkeys(TRANSIENT_ERRNOS, "disk_error"),
}

# Gloo reports a dead peer as a plain RuntimeError with these texts (gloo/transport/tcp).
PEER_TEXTS = (
    *("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Timed out"),
    "Connection was likely closed",  # of the store, which ends with the first node's torchrun
)

# Texts of a lack of memory, on a host or a device; torch raises some as RuntimeErrors.
MEMORY_TEXTS = ("can't allocate memory", "Cannot allocate memory", "out of memory", "MemoryError")


class UserError(Exception):
    """A user's mistake, exit 2: the text says what, where, and the way out."""


class FailedError(Exception):
    """An action that should have worked did not, exit 1: the text says what happened."""
