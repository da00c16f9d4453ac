"""A local run notices a stop signal, or the end of an agent, without a pause."""

import os
import signal
import subprocess
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


def test_a_wait_ends_at_a_stop_signal(stops):
    os.kill(os.getpid(), signal.SIGTERM)
    stops.wait(LONG_S)
    assert stops == [signal.SIGTERM]
    assert local.wait_for_stop(stops, LONG_S)


def test_a_wait_ends_with_a_child_process_and_that_is_no_stop(stops):
    child = subprocess.Popen(["sleep", "0.1"])
    while child.poll() is None:
        stops.wait(LONG_S)
    assert stops == [] and not local.wait_for_stop(stops, 0.01)


def test_the_handlers_of_before_come_back():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGCHLD)]
    with local.stop_signals():
        assert signal.getsignal(signal.SIGTERM) != before[0]
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGCHLD)] == before
    assert signal.set_wakeup_fd(-1) == -1
