"""Imported first by the fork server, the process that forks the loader's workers of one rank.

A module of its own, because the fork server must ignore the stop signals before it imports torch,
which takes seconds; any module with other imports would be too late.

A rank must not fork by itself. One of its native threads may hold the lock over Python's list of
threads at that moment, and the child would wait for that lock for ever (CPython before 3.12; seen
with gloo's threads on busy cores). The fork server has no other threads. It ends when its rank and
all workers have ended.
"""

import signal

from ....jobs.base.stop_signals import STOP_SIGNALS, unblock_stop_signals

for number in STOP_SIGNALS:
    signal.signal(number, signal.SIG_IGN)
unblock_stop_signals()  # the rank blocked them until here
