"""What a local run leaves to the command that comes after it in the same process."""

import signal
import threading

from slurm_job_kit.jobs.commands import local


def test_a_stop_after_the_last_wait_is_no_stop_of_the_next_command():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with local.stop_signals() as stops:
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)  # pytest has other threads
    assert stops == [signal.SIGINT]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
