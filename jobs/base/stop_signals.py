"""The signals that ask a job to stop; blocks them until a process has handlers for them.

The batch process, the agents, a local run, the trainer and its workers handle the same ones. This
file imports little: a signal that comes before its handler may be lost. The kernel keeps a blocked
one pending, across exec, too, and delivers it when it is unblocked.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Sequence

# Any of them may be the job's own --signal.
STOP_SIGNALS = (
    *(signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP),
    *(signal.SIGQUIT, signal.SIGALRM),
)
AWAITED = (*STOP_SIGNALS, signal.SIGCHLD)  # by the parent of agents, or of a torchrun
# Ends a torchrun without ranks, in which it has no handler; no job is stopped by it. All of
# STOP_SIGNALS are ignored there.
END_TORCHRUN = signal.SIGVTALRM
# torchrun raises an exception at those signals that it is told to handle, and has to be told some.
# No process sends this one.
HANDLED_BY_TORCHRUN = signal.SIGRTMAX
taken: set[signal.Signals] = set()  # all that have come by `arrived` to this process


def block_stop_signals() -> None:
    """Keep stop signals pending from now on."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)


def unblock_stop_signals() -> None:
    """Deliver pending and future stop signals, also if this process inherited them blocked."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def end_at_stop_signals() -> None:
    """Let stop signals end this process, before exec: its parent may ignore and block them."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, AWAITED)


def arrived(numbers: Sequence[signal.Signals], seconds: float) -> list[signal.Signals]:
    """Wait for one of some blocked signals, at most so long; returns those that came, each once."""
    came: list[signal.Signals] = []
    for _ in numbers:
        if (number := _wait(numbers, 0 if came else seconds)) < 0:
            break
        came.append(signal.Signals(number))
    taken.update(came)
    return came


def _wait(numbers: Sequence[signal.Signals], seconds: float) -> int:
    """Return the number of a signal that came; -1 for none, also if this process was suspended.

    Not signal.sigtimedwait: if a suspended process continues after the time is over, Python returns
    what was in memory, such as a SIGHUP that nobody has sent. Source: CPython,
    Modules/signalmodule.c, signal_sigtimedwait_impl (3.11 to 3.14).
    """
    import ctypes  # not at the top: see above

    mask = (ctypes.c_uint64 * 16)()  # sigset_t of glibc and musl
    mask[0] = sum(1 << (number - 1) for number in numbers)
    limit = (ctypes.c_long * 2)(int(seconds), int(seconds % 1 * 10**9))  # struct timespec
    return int(ctypes.CDLL(None).sigtimedwait(mask, None, limit))


class StopSignals:
    """The stop signals that have come to this process, in which `awaited` are blocked.

    awaited: may also have SIGCHLD, which ends a wait and is no stop.
    """

    def __init__(self, awaited: Sequence[signal.Signals] = STOP_SIGNALS) -> None:
        self._awaited = awaited
        self.names: list[str] = []  # since the last `take`

    def wait(self, seconds: float) -> list[str]:
        """Wait for a signal; returns the names of the stop signals that came."""
        came = arrived(self._awaited, seconds)
        names = [number.name for number in came if number in STOP_SIGNALS]
        self.names += names
        return names

    def pause(self, seconds: float) -> None:
        """Wait until a stop signal has come, at most so long."""
        deadline = time.monotonic() + seconds
        while not self.names and (left := deadline - time.monotonic()) > 0:
            self.wait(left)

    def take(self) -> list[str]:
        """Return the first stop signal in a list, and forget it: the attempt has ended."""
        self.wait(0)
        first, self.names = self.names[:1], []
        return first


def send(number: signal.Signals, pids: Iterable[int]) -> None:
    """Send a signal to processes, of which some may just have ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
