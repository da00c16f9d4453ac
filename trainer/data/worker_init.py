"""Imported by the process that forks the loader's workers, once for each rank.

A rank itself must not fork: its native threads may hold the lock over Python's list of threads at
that moment, which the child then waits for, for ever (CPython before 3.12, seen with gloo's
threads on busy cores). This process has no other threads. It ignores what would end it before its
rank, and is gone when rank and workers are.
"""

from __future__ import annotations

import signal

from trainer.stop import STOP_SIGNALS

for number in STOP_SIGNALS:
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)  # held back until now by the rank
