"""What a local run leaves to the command that comes after it in the same process."""

import signal
import subprocess
import threading

from slurm_job_kit.jobs.commands import local


def test_a_stop_after_the_last_wait_is_no_stop_of_the_next_command():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with local.stop_signals() as stops:
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)  # pytest has other threads
    assert stops.names == ["SIGINT"]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_a_stop_ends_the_wait_before_a_retry_and_the_end_of_a_child_does_not():
    with local.stop_signals() as stops:
        subprocess.run(["true"], check=True)
        threading.Timer(0.3, signal.pthread_kill, (threading.get_ident(), signal.SIGINT)).start()
        stops.pause(100)
    assert stops.names == ["SIGINT"]
