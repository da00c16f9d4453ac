"""How a rank fails: its last words in the log and in the run directory, then out at once."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
import traceback
from typing import NoReturn

from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from jobs.rundir import AttemptDir, write_json

EXIT_FAILED = 1
EXIT_USER_ERROR = 2

# Gloo reports a dead peer as a plain RuntimeError; these are its words (gloo/transport/tcp).
PEER_WORDS = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Timed out")


class UserError(Exception):
    """A mistake in the spec or in the launch: shown in one line, without a traceback."""


class Superseded(Exception):
    """A newer attempt owns the run: this one may not commit anything any more."""


def is_caused_by_peer(error: BaseException) -> bool:
    """Whether the error only says that another rank went away, so that the root cause is there."""
    text = str(error)
    return isinstance(error, RuntimeError) and any(words in text for words in PEER_WORDS)


def fail(error: BaseException, rank: int | None, attempt_dir: AttemptDir | None) -> NoReturn:
    """Write down why this rank fails and leave without waiting for its peers.

    They may be stuck in a collective with this rank, and a tear-down would wait for them; torchrun
    ends them once it sees this exit.
    """
    host = socket.gethostname()
    is_plain = isinstance(error, (UserError, Superseded))
    trace = "" if is_plain else "".join(traceback.format_exception(error))
    message = str(error) if is_plain else f"{type(error).__name__}: {error}"
    who = f"rank {rank} on {host}" if rank is not None else f"a rank on {host}"
    if is_caused_by_peer(error):
        print(f"trainer: {who}: another rank went away: {message}", file=sys.stderr)
    else:
        print(f"{trace}trainer: {who}: error: {message}", file=sys.stderr)
    record = {
        "time": round(time.time(), 3),
        "rank": rank,
        "host": host,
        "error": message,
        "traceback": trace,
        "caused_by_peer": is_caused_by_peer(error),
        "is_user_error": isinstance(error, UserError),
    }
    # A full or vanished disk may be the very reason: the log has the words already.
    with contextlib.suppress(OSError):
        if rank is not None and attempt_dir is not None and attempt_dir.path.is_dir():
            write_json(attempt_dir.rank_error(rank), record)
        if isinstance(error, Exception) and not is_plain and not is_caused_by_peer(error):
            get_error_handler().record_exception(error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(EXIT_USER_ERROR if isinstance(error, UserError) else EXIT_FAILED)
