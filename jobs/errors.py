"""The two kinds of errors that end a command without a traceback, and texts of torch's errors."""

from typing import Literal

# What a person corrects before the run can go on. None: nothing, or it is not known.
Mistake = Literal["code", "spec"]

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
