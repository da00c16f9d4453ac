"""The request to stop: a signal becomes a flag, which the training loop reads between steps.

Imports no torch: the handler has to stand before those seconds begin.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)
STARTUP_GRACE_S = 10.0
EXIT_STOPPED_IN_STARTUP = 128 + signal.SIGTERM


class StopSignal:
    """Whether this rank was asked to stop."""

    def __init__(self) -> None:
        self.requested = False
        self._in_loop = threading.Event()

    def install(self) -> None:
        """Take over the stop signals, whatever disposition and mask were inherited."""
        read_fd, write_fd = os.pipe()
        os.set_blocking(write_fd, False)
        signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
        # A pool that ends its forked workers with SIGTERM would write to our pipe otherwise.
        os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
        for number in STOP_SIGNALS:
            signal.signal(number, self._on_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        watcher = threading.Thread(target=self._leave_startup, args=(read_fd,), daemon=True)
        watcher.start()

    def enter_loop(self) -> None:
        """From now on the loop answers a stop, and the watcher leaves it alone."""
        self._in_loop.set()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.requested = True

    def _leave_startup(self, read_fd: int) -> None:
        """End a rank that was asked to stop and does not get to its loop.

        Python's handlers do not run while the main thread waits inside C++ (a rendezvous with a
        peer that never comes); the wakeup descriptor is written by the C handler itself.
        """
        while os.read(read_fd, 1)[0] not in STOP_SIGNALS:
            pass  # the byte is the signal's number, and others may have handlers, too
        if not self._in_loop.wait(STARTUP_GRACE_S):
            grace = f"{STARTUP_GRACE_S:.0f} s"
            text = f"trainer: asked to stop during start-up; not ready after {grace}, leaving\n"
            os.write(2, text.encode())
            os._exit(EXIT_STOPPED_IN_STARTUP)
