"""The errors that end a command without a traceback, and how an error is written out.

Imports the standard library only: the processes of a user's script load this file, too.
"""

import errno
import traceback

# Errors of a file server or a network, which may work again in the next attempt.
TRANSIENT_ERRNOS = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EREMOTEIO, errno.ESHUTDOWN)

# Gloo reports a dead peer as a plain RuntimeError with these texts (gloo/transport/tcp).
PEER_TEXTS = (
    *("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Timed out"),
    "Connection was likely closed",  # of the store, which ends with the first node's torchrun
)

HINT = "\n  hint: "  # between an error and what to do


class HintedError(Exception):
    """An error whose arguments are what happened, with the place, and the way out, if any."""

    def __str__(self) -> str:
        return HINT.join(map(str, self.args))


class UserError(HintedError):
    """A user's mistake, exit 2."""


class RecordError(UserError, ValueError):
    """A file of the run directory is not what it should be; names the file, and the key if any."""


class FailedError(HintedError):
    """An action that should have worked did not, exit 1.

    may_be_queued: a job may be in the queue all the same, and needs its run directory.
    """

    may_be_queued = False


def in_words(error: BaseException) -> str:
    """Return an error as Python prints it below its frames.

    Below it, in a line, the error that came first, if this one was raised because of it.
    """
    first = _first_cause(error)
    words, of_first = (
        "".join(traceback.format_exception_only(each)).strip() for each in (error, first)
    )
    return words if first is error else f"{words}\nfirst cause: {of_first.splitlines()[0]}"


def _first_cause(error: BaseException) -> BaseException:
    """Return the error that came first; `error` itself where it did."""
    seen, first = {id(error)}, error
    while True:
        behind = first.__cause__ or (None if first.__suppress_context__ else first.__context__)
        # The text of an error of another process, which this error repeats.
        is_copy = type(behind).__name__.endswith("RemoteTraceback")
        if behind is None or id(behind) in seen or is_copy:
            return first
        seen.add(id(behind))
        first = behind
