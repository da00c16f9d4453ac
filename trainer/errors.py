"""How a rank fails: it writes the reason to its log and to the run directory, and exits at once.

Imports no torch, because torch may be the broken part: errors of torch are known by their names.
"""

import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn, TextIO

from .contract import HINT as HINT
from .contract import (
    KINDS,
    LAYOUT,
    OF_MEMORY,
    PEER_TEXTS,
    REPEATED,
    TRANSIENT_ERRNOS,
    AttemptDir,
    Kind,
    RankError,
    RecordError,
    files,
    in_words,
    installation,
    known_cause,
    node_name,
    on_a_screen,
    printable,
    records,
    with_time,
)
from .contract import UserError as UserError

EXIT_FAILED = 1
EXIT_USER_ERROR = 2
REPORT_LIMIT_S = 10.0

# The kit's packages, and the folders that may have the user's code: the one that the packages are
# in, in a clone, and the one in which the ranks start.
_TOP = Path(__file__).resolve().parents[1]
KIT = (_TOP / "trainer", _TOP / "jobs")
CODE = (_TOP, installation.START)

# Errors of the run directory that repeat until a person has removed the cause.
STORAGE = (Kind.DISK_FULL, Kind.QUOTA, Kind.PERMISSION, Kind.FILES_MISSING)
# Errors of the machine, not of the code: memory, devices, network. Another attempt may succeed.
MACHINE_ERRORS = {"MemoryError", "OutOfMemoryError", "AcceleratorError", "DistError"}
MACHINE_TEXTS = (
    *("CUDA error", "CUDNN_STATUS", "CUBLAS_STATUS", "CUSOLVER_STATUS"),
    *("NCCL", "gloo/", "DefaultCPUAllocator"),
)

# Acquired and never released by the thread that exits, so that only one error is reported.
exit_lock = threading.RLock()


class NoSamples(UserError):
    """A part of the data set is empty, perhaps only on this host."""


class OtherData(UserError):
    """The samples are others than on rank 0, or than at a start before."""

    kind = Kind.OTHER_DATA


class NotFinite(UserError):
    """A loss or a weight is NaN or infinite: it is not saved, and a retry would repeat it."""

    kind = Kind.NOT_FINITE


class StorageError(UserError):
    """The run directory cannot be written to until a person has removed the cause."""

    kind: Kind | None = None


class NoCheckpointLeft(UserError):
    """The run had checkpoints, and none of them is whole any more."""

    kind = Kind.FILES_MISSING


class RankFailure(Exception):
    """An error that its message explains; the next attempt may do without it."""

    kind: Kind | None = None
    caused_by_peer = False  # whether another rank is the root cause


class TransientStorageError(RankFailure):
    """The run directory could not be reached; the next attempt may reach it again."""

    kind = Kind.DISK_ERROR


class Superseded(RankFailure):
    """A newer attempt owns the run: this one may not commit a checkpoint any more."""


class CodeError(Exception):
    """An error of the user's code, in one line with the spec key; `trace` is its traceback.

    It may come from a worker process, which can only send text.
    """

    def __init__(self, message: str, trace: str) -> None:
        super().__init__(message, trace)  # both, because pickle keeps the arguments only
        self.trace = trace

    def __str__(self) -> str:
        return str(self.args[0])


class UserCodeError(CodeError, UserError):
    """A mistake in the user's code, which the next attempt would repeat."""


ONE_LINE = (UserError, CodeError, RankFailure)


def storage_error(error: OSError, doing: str) -> Exception:
    """Return the error to raise for an OSError of the run directory, `doing` "saving step 12".

    An OSError that the storage did not cause is returned unchanged, to be shown with its traceback.
    """
    where = f"{error.filename}: " if error.filename is not None else ""
    text = f"{doing}: {where}{error.strerror or error}"
    if error.errno in TRANSIENT_ERRNOS:
        return TransientStorageError(text)
    kind = known_cause("", (), error.errno)
    if kind is None or kind not in STORAGE:
        return error
    found = StorageError(f"{text}; {KINDS[kind].advice}")
    found.kind = kind
    return found


@contextlib.contextmanager
def storage(doing: str) -> Iterator[None]:
    """Raise what `storage_error` returns for an OSError of the block."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, doing) from error


def is_caused_by_peer(error: BaseException) -> bool:
    """Return whether another rank is the root cause: it died, or reports the error itself."""
    if isinstance(error, RankFailure):
        return error.caused_by_peer
    is_gloo = isinstance(error, RuntimeError) and any(known in str(error) for known in PEER_TEXTS)
    # NCCL aborts ranks that wait for a dead peer.
    return is_gloo or type(error).__name__ == "DistBackendError"


def is_of_machine(error: BaseException) -> bool:
    """Return whether the cause of an error is a device, the memory or another rank."""
    text = str(error)
    is_plain = isinstance(error, RuntimeError) and any(known in text for known in MACHINE_TEXTS)
    # The cause in torch.compile's back end may be a full disk or a killed compiler.
    is_compiler = type(error).__module__.startswith("torch._inductor")
    is_known = not MACHINE_ERRORS.isdisjoint(_names(error))
    return is_plain or is_compiler or is_known or is_caused_by_peer(error)


def _names(error: BaseException) -> list[str]:
    return [each.__name__ for each in type(error).__mro__]


def would_repeat(error: BaseException) -> bool:
    """Return whether the next attempt would repeat the error, so that only a person can remove it.

    A RecordError is none: `attempt.open` has read the same files, or written them, just before. If
    the file stays damaged, it holds the run.
    """
    return isinstance(error, UserError) and not isinstance(error, RecordError)


def kind_of(error: BaseException) -> Kind:
    """Return the kind of an error: its own, that of the known cause behind it, or by its class."""
    is_ours = isinstance(error, ONE_LINE)
    own: Kind | None = getattr(error, "kind", None) if is_ours else None
    cause = error.__cause__ or error if is_ours else error
    number = getattr(cause, "errno", None)
    text = "" if is_ours and not isinstance(error, CodeError) else in_words(cause)
    number = number if isinstance(number, int) else None
    if known := own or known_cause(text, _names(cause), number):
        return known
    if would_repeat(error) and not isinstance(error, (UserCodeError, StorageError)):
        return Kind.SPEC_MISTAKE
    is_plain = isinstance(error, Exception) and not isinstance(error, (*ONE_LINE, OSError))
    is_of_code = is_plain and not is_of_machine(error) and users_frames(error)
    return Kind.USER_CODE if is_of_code or isinstance(error, UserCodeError) else Kind.UNKNOWN


def users_frames(
    error: BaseException, folders: tuple[Path, ...] = CODE
) -> list[tuple[Path, traceback.FrameSummary]]:
    """Return the frames of an error in files of the user: (path below one of `folders`, frame)."""
    found = []
    for frame in traceback.extract_tb(error.__traceback__):
        file = Path(frame.filename).resolve()
        tops = [folder for folder in folders if file.is_relative_to(folder)]
        is_kits = any(map(file.is_relative_to, KIT)) or "site-packages" in file.parts
        if tops and not is_kits and not frame.filename.startswith("<"):
            found.append((file.relative_to(tops[0]), frame))
    return found


def in_one_line(error: BaseException) -> str:
    """Return the type of an error and the first line of its message."""
    name, text = type(error).__name__, str(error).strip().partition("\n")[0]
    return f"{name}: {text}" if text else name


def log(text: str, stream: TextIO | None = None) -> None:
    """Write a line to the log (stdout), with the time if this is a rank of a run.

    Errors are ignored: a full disk below a log ends no training.
    """
    write_text(printable(f"{with_time(text)}\n", LAYOUT), sys.stdout if stream is None else stream)


def write_text(text: str, stream: TextIO) -> None:
    """Write a text, such as a traceback, if the stream can be written to."""
    # ValueError: the stream is closed. AttributeError: it is None, closed before the start.
    with contextlib.suppress(OSError, ValueError, AttributeError):
        stream.write(text)
        stream.flush()


def run_with_timeout(limit_s: float, action: Callable[[], None]) -> None:
    """Run `action` in a thread and wait for it up to `limit_s`: a dead file server may block it."""
    thread = threading.Thread(target=action, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no memory for a thread, which may be the error to report
        action()
        return
    thread.join(limit_s)


def fail(error: BaseException, rank: int | None, attempt_dir: AttemptDir | None) -> NoReturn:
    """Report why this rank fails and exit without waiting for other ranks.

    They may wait in a collective for this rank, and Python's tear-down would wait for them;
    torchrun ends them when this rank has exited. Only the first thread that gets here reports.
    """
    exit_lock.acquire()
    run_with_timeout(REPORT_LIMIT_S, lambda: report(error, rank, attempt_dir))
    os._exit(EXIT_USER_ERROR if would_repeat(error) else EXIT_FAILED)


def report(error: BaseException, rank: int | None, attempt_dir: AttemptDir | None) -> None:
    """Write an error of this rank to its log and, as a record, to the run directory."""
    host, kind, is_peers = node_name(), kind_of(error), is_caused_by_peer(error)
    is_ours = isinstance(error, ONE_LINE)  # then its message is enough
    trace = "" if is_ours else "".join(traceback.format_exception(error))
    trace = error.trace if isinstance(error, CodeError) else trace
    message = str(error) if is_ours else on_a_screen(in_words(error))
    message += f"{HINT}{KINDS[kind].advice}" if kind in OF_MEMORY else ""
    who = f"rank {rank} on {host}" if rank is not None else f"a rank on {host}"
    if is_peers and trace:
        log(f"trainer: {who}: another rank exited: {message}", sys.stderr)
    else:
        write_text(trace, sys.stderr)
        log(f"trainer: {who}: error: {message}", sys.stderr)
    # A full or missing disk may be the error itself: the log already has the message.
    with contextlib.suppress(OSError):
        # Creates no directory: where the run directory was moved away, that would hide it.
        if rank is not None and attempt_dir is not None and files.is_dir(attempt_dir.path):
            record = RankError(
                round(time.time(), 3),
                rank,
                host,
                message.strip(),
                kind=kind,
                traceback=trace,
                caused_by_peer=is_peers,
                would_repeat=would_repeat(error) or kind in REPEATED,
            )
            records.write(attempt_dir.rank_error(rank), record)
    write_text("", sys.stdout)
