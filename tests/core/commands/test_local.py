"""A local run notices a stop signal, or the end of an agent, without a pause."""

import signal
import subprocess
import threading
import time

import pytest

from slurm_job_kit.jobs.commands import local

LONG_S = 60.0  # the tests would take so long, and fail, if `wait` were only a pause


@pytest.fixture
def stops():
    with local.stop_signals() as stops:
        began = time.monotonic()
        yield stops
        assert time.monotonic() - began < LONG_S


def to_this_thread(number):
    """Send a signal as to the process of a command, which has no other thread; pytest has."""
    signal.pthread_kill(threading.get_ident(), number)


def test_a_wait_ends_at_a_stop_signal(stops):
    to_this_thread(signal.SIGTERM)
    stops.wait(LONG_S)
    assert stops == [signal.SIGTERM]


def test_a_wait_ends_with_a_child_process_and_that_is_no_stop(stops):
    child = subprocess.Popen(["sleep", "0.1"])
    while child.poll() is None:
        stops.wait(LONG_S)
    assert stops == []


def test_what_comes_after_the_last_wait_is_no_stop_of_the_next_command():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with local.stop_signals():
        to_this_thread(signal.SIGINT)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
