"""The signals that ask a job to stop; blocks them until a process has handlers for them.

The kernel keeps a blocked signal pending, across exec, too, and delivers it when it is unblocked.
"""

from __future__ import annotations

import signal

# Any of them may be the job's own --signal. The kernel's numbers (--signal=10) and SIG in front of
# the name mean the same to Slurm. Source: sbatch(1), --signal.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP)
# Ends a torchrun without ranks; no job is stopped by it. All of STOP_SIGNALS are ignored there.
END_TORCHRUN = signal.SIGALRM


def block_stop_signals() -> None:
    """Keep stop signals pending from now on."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)


def unblock_stop_signals() -> None:
    """Deliver pending and future stop signals, also if this process inherited them blocked."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
