"""The start and end of the worker processes that read a per-sample set."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from slurm_job_kit.jobs.base.stop_signals import STOP_SIGNALS
from tests.core.data_kit import feed_of
from tests.core.waiting import is_running, wait_for
from tests.plugins.samples.samples_kit import Chancy

REPOSITORY = Path(__file__).resolve().parents[3]
pytestmark = [pytest.mark.long, pytest.mark.usefixtures("no_reader_left")]


class Pids(Chancy):
    """Samples [3]: the reading process's pid, its number of threads, its signal wakeup fd."""

    def __getitem__(self, index):
        fd = signal.set_wakeup_fd(-1)
        return torch.tensor([os.getpid(), torch.get_num_threads(), fd]).float(), 0


class Stuck(Pids):
    """Reading the second sample takes a minute."""

    def __getitem__(self, index):
        self.count = getattr(self, "count", 0) + 1
        if self.count == 2:
            time.sleep(60)
        return super().__getitem__(index)


def readers(feed, steps):
    return [[int(v) for v in next(feed.micro_batches(step))[0][0]] for step in steps]


@pytest.fixture
def received():
    """The signals that reach this process, which has handlers as a rank has."""
    seen = []
    old = {n: signal.signal(n, lambda number, frame: seen.append(number)) for n in STOP_SIGNALS}
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    old_fd = signal.set_wakeup_fd(write_fd)
    yield seen
    signal.set_wakeup_fd(old_fd)
    for number, handler in old.items():
        signal.signal(number, handler)
    os.close(read_fd)
    os.close(write_fd)


def test_a_worker_survives_stop_signals_and_epochs_until_its_batches_are_closed(received):
    feed = feed_of(Pids(8), workers=1, micro_batch_size=1, epochs=6)
    (pid, threads, fd), *_ = readers(feed, range(2))
    assert pid != os.getpid() and (threads, fd) == (1, -1)
    for number in STOP_SIGNALS:
        os.kill(pid, number)
    assert {reader[0] for reader in readers(feed, range(2, 48))} == {pid}
    assert received == []
    feed.close()
    wait_for(lambda: not is_running(pid))


# Python imports sitecustomize at its start: the processes that start the workers get a stop signal
# as early as possible.
STOP_AT_ONCE = """
import os, signal, sys
if any("multiprocessing" in word for word in sys.orig_argv):
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        os.kill(os.getpid(), number)
"""


RANK = """
import signal, time
import tests.plugins.samples.test_processes as t
feed = t.feed_of(t.Pids(8), workers=1, micro_batch_size=1)
print(t.readers(feed, range(3))[0][0], signal.pthread_sigmask(signal.SIG_BLOCK, ()), flush=True)
feed.close()
feed = t.feed_of(t.Stuck(8), workers=1, micro_batch_size=1)
print(t.readers(feed, [0])[0][0], flush=True)
time.sleep(60)
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """What RANK wrote to stdout and stderr until it was killed, in a read of its second worker."""
    folder = tmp_path_factory.mktemp("rank")
    (folder / "sitecustomize.py").write_text(STOP_AT_ONCE)
    errors = folder / "errors"
    with errors.open("w") as stderr:
        rank = subprocess.Popen(
            [sys.executable, "-c", RANK],
            env={**os.environ, "PYTHONPATH": f"{folder}:{REPOSITORY}"},
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    assert rank.stdout is not None
    try:
        lines = [rank.stdout.readline() for _ in range(2)]
        said = errors.read_text()
        assert lines[1] and is_running(int(lines[1])), said
    finally:
        rank.kill()
        rank.wait()
        rank.stdout.close()
    return lines, said


def test_a_worker_dies_with_its_rank_even_during_a_read(killed):
    wait_for(lambda: not is_running(int(killed[0][1])))


def test_workers_survive_a_stop_signal_during_their_start(killed):
    lines, stderr = killed
    # Python's tracker of semaphores may find one that is just being removed.
    errors = [line for line in stderr.splitlines() if "resource_tracker" not in line]
    assert not [line for line in errors if line[:1].strip()], errors
    reader, mask = lines[0].split(maxsplit=1)
    assert int(reader) > 0 and mask == "set()\n"
