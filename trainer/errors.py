"""How a rank fails: its last words in the log and in the run directory, then out at once.

Imports no torch, which may be the very thing that is broken.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TextIO

from jobs.rundir import AttemptDir, write_json

EXIT_FAILED = 1
EXIT_USER_ERROR = 2
LAST_WORDS_LIMIT_S = 10.0

# Gloo reports a dead peer as a plain RuntimeError; these are its words (gloo/transport/tcp).
PEER_WORDS = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Timed out")

# What a host's or a device's memory says when it is used up; torch raises some as RuntimeErrors.
MEMORY_WORDS = ("can't allocate memory", "Cannot allocate memory", "out of memory", "MemoryError")
MEMORY_HINT = "a smaller train.micro_batch_size with more train.grad_accum_steps"

# What a person has to put right, and what that is; another attempt would only meet it again.
STORAGE_HINTS = {
    errno.ENOSPC: "free space there",
    errno.EDQUOT: "free space there or ask for more quota",
    errno.EROFS: "have it made writable",
    errno.EACCES: "have it made writable",
    errno.EPERM: "have it made writable",
    errno.ENOENT: "put the run directory back where it was",
    errno.ENOTDIR: "put the run directory back where it was",
}
# What a server or a network does and the next attempt may find gone.
TRANSIENT_ERRNOS = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EREMOTEIO)

# Taken for good by the thread that ends this process: no other may then tell another reason.
leaving = threading.RLock()


class UserError(Exception):
    """A mistake in the spec or in the launch: shown in one line, without a traceback."""


class NotFinite(UserError):
    """A loss or a weight is NaN or infinite: nothing of it is committed, and a retry repeats it."""


class StorageError(UserError):
    """The run directory cannot be written to until a person has put that right."""


class TransientStorageError(Exception):
    """The run directory could not be reached; another attempt may find it well again."""


class Superseded(Exception):
    """A newer attempt owns the run: this one may not commit anything any more."""


class CodeError(Exception):
    """What the user's own code raised, in one line that names its key; `trace` tells the rest.

    It may have happened in another process, which only the words leave.
    """

    def __init__(self, message: str, trace: str) -> None:
        super().__init__(message, trace)  # both, for the arguments are what is pickled
        self.trace = trace

    def __str__(self) -> str:
        return str(self.args[0])


class UserCodeError(CodeError, UserError):
    """A mistake in the user's own code, which another attempt would only meet again."""


class Hang(Exception):
    """No progress for too long, told by the rank that found it first."""


class PeerHang(Hang):
    """The same hang, on a rank that leaves the telling to another."""


class BadNode(Exception):
    """This rank's node fails the preflight, and the next attempt may do without it."""


class PeerBadNode(Exception):
    """The same, on a rank of another node."""


ONE_LINE = (
    *(UserError, CodeError, TransientStorageError, Superseded, Hang),
    *(BadNode, PeerBadNode),
)
HINT = "\n  hint: "


def storage_error(error: OSError, doing: str) -> Exception:
    """The error to raise from an OSError of the run directory, `doing` being "saving step 12".

    An OSError that is no fault of the storage comes back as it is, for its traceback.
    """
    reason = error.strerror or str(error)
    where = f"{error.filename}: " if error.filename is not None else ""
    if error.errno in STORAGE_HINTS:
        hint = STORAGE_HINTS[error.errno]
        return StorageError(f"{doing}: {where}{reason}; {hint}, then resume the run")
    if error.errno in TRANSIENT_ERRNOS:
        return TransientStorageError(f"{doing}: {where}{reason}")
    return error


def is_caused_by_peer(error: BaseException) -> bool:
    """Whether the root cause is another rank's: it went away, or tells of it itself."""
    text = str(error)
    is_gloo = isinstance(error, RuntimeError) and any(words in text for words in PEER_WORDS)
    # By name: this module has to load where torch does not. NCCL ends what waits for a dead peer.
    is_nccl = type(error).__name__ == "DistBackendError"
    return is_gloo or is_nccl or isinstance(error, (PeerHang, PeerBadNode))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error, or what the user's code raised to cause it, is a lack of memory."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    # By name: this module has to load where torch does not.
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    is_told = isinstance(error, RuntimeError) or type(error) is CodeError
    return is_told and any(words in str(error) for words in MEMORY_WORDS)


def memory_hint(error: BaseException) -> str:
    """What to change after a lack of memory; a device has no more than it has."""
    is_device = type(error).__name__ == "OutOfMemoryError" or "CUDA" in str(error)
    return MEMORY_HINT if is_device else f"more slurm.mem, or {MEMORY_HINT}"


def in_one_line(error: BaseException) -> str:
    """The type of an error and the first line of what it says."""
    name, text = type(error).__name__, str(error).strip().partition("\n")[0]
    return f"{name}: {text}" if text else name


def kind_of(error: BaseException) -> str:
    """What an attempt is closed by, in one word."""
    if isinstance(error, Hang):
        return "hang"
    if isinstance(error, BadNode):
        return "bad_node"
    return "out_of_memory" if is_out_of_memory(error) else "error"


def traceback_of(error: BaseException) -> str:
    """The traceback to tell of an error; empty for those that explain themselves."""
    if isinstance(error, CodeError):
        return error.trace
    return "" if isinstance(error, ONE_LINE) else "".join(traceback.format_exception(error))


def tell(text: str, stream: TextIO | None = None) -> None:
    """Print a line (to stdout) if that is possible: a full disk under a log ends no training."""
    stream = sys.stdout if stream is None else stream
    # ValueError: the stream is closed. AttributeError: it is None, closed before the start.
    with contextlib.suppress(OSError, ValueError, AttributeError):
        stream.write(text + "\n")
        stream.flush()


def within(limit_s: float, action: Callable[[], None]) -> None:
    """Do what touches a disk, but wait no longer than `limit_s`: a dead server may never answer."""
    thread = threading.Thread(target=action, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no memory for a thread, which may be the very thing to tell
        action()
        return
    thread.join(limit_s)


def fail(error: BaseException, rank: int | None, attempt_dir: AttemptDir | None) -> NoReturn:
    """Write down why this rank fails and leave without waiting for its peers.

    They may be stuck in a collective with this rank, and a tear-down would wait for them; torchrun
    ends them once it sees this exit. The first thread to get here has the word.
    """
    leaving.acquire()
    within(LAST_WORDS_LIMIT_S, lambda: _last_words(error, rank, attempt_dir))
    os._exit(EXIT_USER_ERROR if isinstance(error, UserError) else EXIT_FAILED)


def _last_words(error: BaseException, rank: int | None, attempt_dir: AttemptDir | None) -> None:
    host = socket.gethostname()
    trace = traceback_of(error)
    message = str(error) if isinstance(error, ONE_LINE) else in_one_line(error)
    if is_out_of_memory(error):
        message += HINT + memory_hint(error)
    who = f"rank {rank} on {host}" if rank is not None else f"a rank on {host}"
    if is_caused_by_peer(error) and trace:
        tell(f"trainer: {who}: another rank went away: {message}", sys.stderr)
    else:
        tell(f"{trace}trainer: {who}: error: {message}", sys.stderr)
    record = {
        "time": round(time.time(), 3),
        "rank": rank,
        "host": host,
        "kind": kind_of(error),
        "error": _without_details(message),
        "traceback": trace,
        "caused_by_peer": is_caused_by_peer(error),
        "is_user_error": isinstance(error, UserError),
    }
    # A full or vanished disk may be the very reason: the log has the words already.
    with contextlib.suppress(OSError):
        # Nothing is made anew: where the run directory was moved away, that would hide it.
        if rank is not None and attempt_dir is not None and attempt_dir.path.is_dir():
            write_json(attempt_dir.rank_error(rank), record)
    if not is_caused_by_peer(error):
        _tell_torchrun(message)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()


def _without_details(message: str) -> str:
    """The first line of a message and our own hint; the log has the rest."""
    head, hint, way_out = message.strip().partition(HINT)
    return head.partition("\n")[0] + hint + way_out.partition("\n")[0]


def _tell_torchrun(message: str) -> None:
    """Have torchrun's summary name the error; it is a nicety, and may fail with anything.

    torch's own handler would add a traceback, of the thread that calls it.
    Source: torch.distributed.elastic.multiprocessing.errors, ErrorHandler.record_exception.
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    record = {"message": message, "extraInfo": {"timestamp": str(int(time.time()))}}
    with contextlib.suppress(OSError, ValueError):
        if path:
            Path(path).write_text(json.dumps({"message": record}), encoding="utf-8")
