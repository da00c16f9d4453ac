"""The errors that end a command without a traceback, and how an error is written out.

Imports the standard library only: the processes of a user's script load this file, too.
"""

import errno
import traceback
from collections.abc import Iterator

# Errors of a file server or a network, which may work again in the next attempt.
TRANSIENT_ERRNOS = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EREMOTEIO, errno.ESHUTDOWN)

# Gloo reports a dead peer as a plain RuntimeError with these texts (gloo/transport/tcp).
PEER_TEXTS = (
    *("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Timed out"),
    "Connection was likely closed",  # of the store, which ends with the first node's torchrun
)


class UserError(Exception):
    """A user's mistake, exit 2: the text says what, where, and the way out."""


class RecordError(UserError, ValueError):
    """A file of the run directory is not what it should be; names the file, and the key if any."""


class FailedError(Exception):
    """An action that should have worked did not, exit 1: the text says what happened.

    may_be_queued: a job may be in the queue all the same, and needs its run directory.
    """

    may_be_queued = False


HINT = "\n  hint: "  # between an error and what to do
MAX_IN_GROUP = 8
MAX_CAPTURED = 60  # lines of a process whose output another one has captured


def in_words(error: BaseException) -> str:
    """Return an error as Python prints it behind its frames: message, notes, the errors of a group.

    Below it, in a line, the error that came first, if this one was raised because of it.
    """
    first = _first_cause(error)
    lines = [*_own_words(error), *([] if first is None else [f"first cause: {first}"])]
    return "\n".join(lines)


def _own_words(error: BaseException) -> Iterator[str]:
    printed = "".join(traceback.format_exception_only(type(error), error)).rstrip("\n").split("\n")
    while len(printed) > 1 and printed[0].endswith(": "):  # the message begins with a newline
        printed[:2] = [printed[0] + printed[1].strip()]
    if isinstance(error, SyntaxError):  # its place comes first
        at = next((n for n, line in enumerate(printed) if not line.startswith(" ")), 0)
        printed = [*printed[at:], *printed[:at]]
    if isinstance(error, BaseExceptionGroup):  # in one line, for the reason of an attempt
        inner = [" ".join(_own_words(each)) for each in error.exceptions[:MAX_IN_GROUP]]
        more = len(error.exceptions) - MAX_IN_GROUP
        printed[0] += ": " + "; ".join([*inner, *([f"and {more} more"] if more > 0 else [])])
    yield from printed
    if type(error).__name__ == "CalledProcessError":
        captured = getattr(error, "stderr", None) or getattr(error, "output", None)
        yield from _decoded(captured).splitlines()[-MAX_CAPTURED:]


def _decoded(output: str | bytes | None) -> str:
    return output.decode("utf-8", "replace") if isinstance(output, bytes) else output or ""


def _first_cause(error: BaseException) -> str | None:
    """Return the first line of the error that came first; None where `error` itself did."""
    seen, first = {id(error)}, error
    while True:
        behind = first.__cause__ or (None if first.__suppress_context__ else first.__context__)
        # The text of an error of another process, which this error repeats.
        is_copy = type(behind).__name__.endswith("RemoteTraceback")
        if behind is None or id(behind) in seen or is_copy:
            break
        seen.add(id(behind))
        first = behind
    return None if first is error else next(_own_words(first), None)
