"""The request to stop: a signal sets a flag, which the training loop reads between steps.

Imports no torch: the handler has to be installed before that import, which takes seconds.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

from jobs.console import with_time

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)
STARTUP_GRACE_S = 10.0
EXIT_STOPPED_IN_STARTUP = 128 + signal.SIGTERM


class StopSignal:
    """Whether this rank was asked to stop."""

    def __init__(self) -> None:
        self.requested = False
        self._in_loop = threading.Event()

    def install(self) -> None:
        """Handle the stop signals, with any inherited disposition and mask."""
        read_fd, write_fd = os.pipe()
        os.set_blocking(write_fd, False)
        signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
        # Without this, SIGTERM to a forked child of the user's code would write to our pipe.
        os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
        for number in STOP_SIGNALS:
            signal.signal(number, self._on_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        watcher = threading.Thread(target=self._leave_startup, args=(read_fd,), daemon=True)
        watcher.start()

    def enter_loop(self) -> None:
        """Record that the loop begins: it reads the flag itself, and the thread ends no rank."""
        self._in_loop.set()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.requested = True

    def _leave_startup(self, read_fd: int) -> None:
        """End a rank that was asked to stop and does not reach its loop in time.

        Python's handlers do not run while the main thread waits in C++ (a rendezvous with a peer
        that never connects); the C handler itself writes to the wakeup descriptor.
        """
        while os.read(read_fd, 1)[0] not in STOP_SIGNALS:
            pass  # the byte is the signal's number; other signals may have handlers, too
        if not self._in_loop.wait(STARTUP_GRACE_S):
            grace = f"{STARTUP_GRACE_S:.0f} s"
            text = f"trainer: asked to stop during start-up; not ready after {grace}, exiting"
            os.write(2, f"{with_time(text)}\n".encode())
            os._exit(EXIT_STOPPED_IN_STARTUP)
