"""The hang watchdog: limits, verdicts, and real processes that hang in every way."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jobs.rundir import RunDir, read_json
from trainer.errors import EXIT_FAILED
from trainer.health import watchdog
from trainer.health.diagnosis import Finding, Process, ranks_text, suspects, verdict
from trainer.health.watchdog import Silence

REPOSITORY = Path(__file__).resolve().parents[3]
LIMIT_S = 1
# One rank: it beats until the file `hang` appears, hangs in its own way, and would leave in peace.
RANK = """
import ctypes, os, sys, time
from pathlib import Path
from types import SimpleNamespace
from jobs.rundir import RunDir
from jobs.spec import Launch
from trainer import errors
from trainer.health import watchdog
from trainer.events import Events

rank, world_size, limit_s = map(int, sys.argv[1:4])
folder, way = Path(sys.argv[4]), sys.argv[5]
watchdog.TICK_S, watchdog.MAX_TICK_S, watchdog.GRACE_S = 0.1, 0.2, 1.5
events = Events(rank)
events.open(RunDir(folder), 1)
events.event("start", host=os.uname().nodename, pid=os.getpid())
spec = SimpleNamespace(launch=Launch(hang_timeout_s=limit_s))
run = SimpleNamespace(dir=RunDir(folder), attempt=1, spec=spec)
context = SimpleNamespace(rank=rank, world_size=world_size)

def pause():
    for _ in range(15 if way == "go on" else 1):
        time.sleep(0.02)

def wait_for_peers():
    time.sleep(60)

def hear_of_a_dead_peer():
    while not run.dir.attempt(1).rank_hang(rank).exists():
        time.sleep(0.02)
    errors.fail(RuntimeError("Connection closed by peer"), rank, run.dir.attempt(1))

def spin_on_a_lock():
    while True:
        pass

def wait_under_the_gil():
    mutex = ctypes.create_string_buffer(64)
    for _ in range(2):
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)

step = 0
with watchdog.Watchdog(SimpleNamespace(context=context, run=run)) as dog:
    while not (folder / "hang").exists():
        step += 1
        dog.beat("batch", step if way == "go on" else 7)
        pause()
        (folder / f"beating-{rank}").touch()  # some ticks after a beat, and before the next
        pause()
    if way in ("wait", "hear"):
        globals()["__name__"] = "trainer.loop"
        wait_for_peers() if way == "wait" else hear_of_a_dead_peer()
    elif way == "spin":
        spin_on_a_lock()
    elif way == "under the gil":
        wait_under_the_gil()
print("left in peace", step)
"""


class Ranks:
    """Some of these processes, in a run directory."""

    def __init__(self, folder, *ways, limit_s):
        self.run = RunDir(folder)
        self.attempt = self.run.attempt(1)
        self.attempt.path.mkdir()
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-c", RANK, *map(str, (rank, len(ways), limit_s, folder)), way],
                cwd=REPOSITORY,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank, way in enumerate(ways)
        ]
        self.pids = [process.pid for process in self.processes]
        deadline = time.monotonic() + 30
        while not all((folder / f"beating-{rank}").exists() for rank in range(len(ways))):
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def hang(self):
        (self.run.path / "hang").touch()

    def signal(self, number, *ranks):
        for rank in ranks:
            os.kill(self.pids[rank], number)

    def end(self, *ranks):
        """(exit statuses, outputs) of these ranks, which must end by themselves."""
        ended = [self.processes[rank] for rank in ranks]
        outputs = [process.communicate(timeout=20)[0] for process in ended]
        return [process.returncode for process in ended], outputs

    def kill(self):
        for process in self.processes:
            process.kill()
            process.wait()
            process.stdout.close()

    def hang_error(self):
        """The record of the rank that tells of the hang; all others refer to it."""
        records = [read_json(self.attempt.rank_error(r)) for r in range(len(self.processes))]
        told = [record for record in records if record is not None]
        assert {record["kind"] for record in told} == {"hang"}
        (first,) = [record for record in told if not record["caused_by_peer"]]
        return first


@pytest.fixture
def start(tmp_path):
    started = []

    def start_ranks(*ways, limit_s=LIMIT_S):
        started.append(Ranks(tmp_path, *ways, limit_s=limit_s))
        return started[-1]

    yield start_ranks
    for ranks in started:
        ranks.kill()


def test_ranks_that_do_not_answer_are_named_and_all_others_leave_with_stacks(start):
    ranks = start("wait", "wait", "stopped", "under the gil")
    ranks.signal(signal.SIGSTOP, 2)
    ranks.hang()
    started = time.monotonic()
    statuses, outputs = ranks.end(0, 1)
    assert time.monotonic() - started < LIMIT_S + 6
    assert statuses == [EXIT_FAILED, EXIT_FAILED]
    error, host = ranks.hang_error(), os.uname().nodename
    silent = f"rank 2 on {host} (pid {ranks.pids[2]}), rank 3 on {host} (pid {ranks.pids[3]})"
    assert error["error"].startswith("no progress for ")
    assert f"(limit {LIMIT_S} s): {silent} do not answer; " in error["error"]
    assert error["error"].endswith("stacks of ranks 0, 1 are in their logs")
    for output in outputs:
        assert "in wait_for_peers" in output and "in _watch" in output
    # torchrun would wait for those two. Stuck in C, one has its stack in its log all the same.
    statuses, (_, output) = ranks.end(2, 3)
    assert statuses == [-signal.SIGKILL] * 2 and "in wait_under_the_gil" in output


def test_a_rank_in_a_python_loop_is_named_with_its_place(start):
    ranks = start("wait", "spin", "hear")
    ranks.hang()
    statuses, outputs = ranks.end(0, 1, 2)
    assert statuses == [EXIT_FAILED] * 3
    error = ranks.hang_error()["error"]
    assert f"(pid {ranks.pids[1]}) is at <string>:" in error
    assert "spin_on_a_lock, in batch of step 7; stacks of ranks 0, 1, 2 are" in error
    assert "rank 0 on" not in error and "rank 2 on" not in error
    assert "in spin_on_a_lock" in outputs[1]
    # What a main thread hears when the first rank leaves does not hide the reason.
    assert "Connection closed" not in outputs[2]


def test_a_suspended_job_goes_on_without_an_alarm(start):
    limit_s = 3 * LIMIT_S  # busy cores hold a beat up, too
    ranks = start("go on", "go on", limit_s=limit_s)
    ranks.signal(signal.SIGSTOP, 0, 1)
    time.sleep(2 * limit_s)  # the one thing that can be seen of a suspension is its length
    ranks.signal(signal.SIGCONT, 0, 1)
    ranks.hang()
    statuses, outputs = ranks.end(0, 1)
    assert statuses == [0, 0] and all("left in peace" in output for output in outputs)
    assert not ranks.attempt.hang.exists()


def test_a_run_directory_that_is_gone_does_not_keep_a_hang(start):
    ranks = start("wait")
    ranks.attempt.path.rename(ranks.run.path / "moved")
    ranks.hang()
    statuses, (output,) = ranks.end(0)
    assert statuses == [EXIT_FAILED]
    assert f"{ranks.attempt.path} is out of reach" in output and "in wait_for_peers" in output


def test_a_beat_costs_next_to_nothing():
    class Bare(watchdog.Watchdog):
        def __init__(self):
            pass

    beat, count = Bare().beat, 100_000
    started = time.thread_time()
    for step in range(count):
        beat("batch", step)
    assert (time.thread_time() - started) / count < 2e-6


def limit_after(*gaps_s):
    silence = Silence("auto")
    silence.tick(400, has_beaten=True)
    for gap_s in gaps_s:
        for _ in range(gap_s):
            silence.tick(1.0, has_beaten=False)
        silence.tick(0.0, has_beaten=True)
    return silence.limit_s


def test_a_limit_is_learned_from_the_longest_gap_and_bounded():
    assert limit_after() == 540  # start-up says nothing of the steps
    assert limit_after(1, 2) == 300
    assert limit_after(1, 40, 2) == 400
    assert limit_after(200) == 540


def test_a_configured_limit_holds_from_the_start():
    silence = Silence(30)
    for _ in range(30):
        silence.tick(1.0, has_beaten=False)
    assert silence.limit_s == 30 and not silence.is_hang
    silence.tick(1.0, has_beaten=False)
    assert silence.is_hang


def test_time_in_which_the_process_did_not_run_does_not_count():
    silence = Silence(30)
    silence.tick(86_400.0, has_beaten=False)
    assert silence.seconds == 2.0 and not silence.is_hang


def found(rank, step=5, is_waiting=True, where="loop.py:1 run"):
    return Finding(rank, f"n{rank}", 100 + rank, "batch", step, where, is_waiting)


def test_a_rank_that_is_steps_behind_is_the_suspect_even_if_it_waits():
    late = found(2, step=4)
    assert suspects([found(0), found(1, is_waiting=False), late]) == [late]


def test_at_the_same_step_the_one_that_waits_for_nobody_is_the_suspect():
    busy = found(1, is_waiting=False)
    assert suspects([found(0), busy, found(2)]) == [busy]


def test_a_rank_that_never_began_a_step_is_behind_all():
    early = found(1, step=None)
    assert suspects([found(0, step=0), early]) == [early]


def test_a_verdict_says_so_where_no_rank_stands_out():
    text = verdict({0: found(0), 1: found(1)}, {})
    assert text.startswith("no rank lags: rank 0 on n0 (pid 100) is at loop.py:1 run, in batch")


def test_a_verdict_stays_short_in_a_large_job():
    findings = {rank: found(rank) for rank in range(1000)}
    silent = {rank: Process("n", 0) for rank in range(1000, 2000)}
    assert len(verdict(findings, silent)) < 400
    assert ranks_text(range(1000)) == "ranks 0, 1, 2, 3 and 996 more"
    assert ranks_text([7]) == "rank 7"
