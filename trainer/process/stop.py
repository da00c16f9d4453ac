"""The request to stop: a signal sets a flag, which the training loop reads between steps.

Imports no torch: the handler has to be installed before that import, which takes seconds.
"""

import os
import signal
import threading
from pathlib import Path
from types import FrameType

# Not by the contract, whose imports take time: see above.
from ...jobs.base.stop_signals import STOP_SIGNALS, unblock_stop_signals

STARTUP_GRACE_S = 10.0
REPORT_LIMIT_S = 5.0
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
        unblock_stop_signals()
        watcher = threading.Thread(target=self._leave_startup, args=(read_fd,), daemon=True)
        watcher.start()

    def enter_loop(self) -> None:
        """Record that the loop begins: it reads the flag itself, and the thread ends no rank."""
        self._in_loop.set()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.requested = True

    def _leave_startup(self, read_fd: int) -> None:
        """End a rank that does not reach its loop in time.

        Python's handlers do not run while the main thread waits in C++ (a rendezvous with a peer
        that never connects); the C handler itself writes to the wakeup descriptor.
        """
        while os.read(read_fd, 1)[0] not in STOP_SIGNALS:
            pass  # the byte is the signal's number; other signals may have handlers, too
        if not self._in_loop.wait(STARTUP_GRACE_S):
            report = threading.Thread(target=_report, daemon=True)
            report.start()
            report.join(REPORT_LIMIT_S)  # the file server may be what the start-up waits for
            os._exit(EXIT_STOPPED_IN_STARTUP)


def _report() -> None:
    """Write to the log and the run directory that this rank leaves before its first step.

    Where only ranks got the signal, the record is all that tells this stop from a crash.
    """
    # Not at the top: the signal handlers are installed before all that takes time.
    import contextlib
    import faulthandler

    from ..contract import Kind, RunDir
    from ..errors import RankFailure, report

    with contextlib.suppress(OSError, ValueError, AttributeError):  # stderr is closed
        faulthandler.dump_traceback()
    rank, folder = os.environ.get("RANK"), os.environ.get("KIT_RUN_DIR")
    attempt = os.environ.get("KIT_ATTEMPT")
    grace = f"{STARTUP_GRACE_S:.0f} s"
    error = RankFailure(f"asked to stop during start-up; not ready after {grace}, exiting")
    error.kind = Kind.STOPPED_IN_START_UP
    attempt_dir = RunDir(Path(folder)).attempt(int(attempt)) if folder and attempt else None
    report(error, None if rank is None else int(rank), attempt_dir)
