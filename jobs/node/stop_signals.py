"""The signals that ask a job to stop; blocks them until a process has handlers for them.

The kernel keeps a blocked signal pending, across exec, too, and delivers it when it is unblocked.
"""

from __future__ import annotations

import signal

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def block_stop_signals() -> None:
    """Keep stop signals pending from now on."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)


def unblock_stop_signals() -> None:
    """Deliver pending and future stop signals, also if this process inherited them blocked."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
