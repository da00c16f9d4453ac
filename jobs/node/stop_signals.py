"""The signals that ask a job to stop, and how they wait until somebody can take them.

A blocked signal is not lost: it is delivered once it is let in, and survives exec until then.
"""

from __future__ import annotations

import signal

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def hold_back() -> None:
    """Have stop signals wait."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)


def let_in() -> None:
    """Take the stop signals that have waited, and all that come, whatever mask was inherited."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
