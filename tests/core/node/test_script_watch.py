"""A hang of a user's script is the time without any output or report of any rank."""

import signal
import subprocess
import time
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_job_kit.jobs import records
from slurm_job_kit.jobs.kinds import Kind
from slurm_job_kit.jobs.node import script_watch
from slurm_job_kit.jobs.node.script_watch import ScriptWatch
from slurm_job_kit.jobs.records.nodes import RankError
from slurm_job_kit.jobs.rundir import Timeline
from tests.core import run_files

LIMIT_S = 1.0


def watch_of(run, node_rank):
    node: Any = SimpleNamespace(rank=node_rank, host=f"n{node_rank}")
    return ScriptWatch(run, 1, node, LIMIT_S)


@pytest.fixture
def begin(run):
    """Starts the watch of a node, with the logs of two ranks."""
    run_files.opened(run)
    watches = []
    for rank in (0, 1):
        run.attempt(1).rank_log(rank).write_text("begun\n")

    def start(node_rank):
        watches.append(watch_of(run, node_rank))
        watches[-1].begin()
        return watches[-1]

    yield start
    for each in watches:
        each.close()


def test_all_agents_find_a_hang_that_the_first_one_records(run, begin):
    for attempt, host in ((7, "n0"), (8, "n1")):  # torchrun has sorted the nodes in its own way
        Timeline(run, "rank-00000", attempt).event("spawn", host=host, pid=1)
    first, second = begin(0), begin(1)
    assert first.is_hang_found.wait(20) and second.is_hang_found.wait(20)
    error = records.read(RankError, run.attempt(1).rank_error(0))
    assert error is not None and (error.kind, error.host) == (Kind.HANG, "n1")
    assert error.error.startswith("no output and no report of any rank for 1 s")


@pytest.mark.parametrize("file", ["log", "progress"])
def test_a_rank_that_writes_and_a_script_that_reports_show_that_no_rank_hangs(run, begin, file):
    watch = begin(0)
    path = run.attempt(1).rank_log(1) if file == "log" else run.progress
    ends = time.monotonic() + 3 * LIMIT_S
    while time.monotonic() < ends:
        with open(path, "a") as log:
            log.write("step\n")
        assert not watch.is_hang_found.wait(LIMIT_S / 4)


def test_a_stop_ends_the_watch(run, begin):
    watch = begin(0)
    watch.close()
    assert not watch.is_hang_found.wait(2 * LIMIT_S)
    assert not run.attempt(1).hang.exists()


def test_ranks_are_aborted_once_a_hang_was_found(run):
    watch = watch_of(run, 0)
    with subprocess.Popen(["sleep", "60"]) as rank:
        assert not watch.end_hang([rank.pid]) and rank.poll() is None
        watch.is_hang_found.set()
        assert not watch.end_hang([rank.pid])
        assert rank.wait(10) == -signal.SIGABRT


def test_torchrun_is_killed_where_ranks_survive_their_abort(run, monkeypatch):
    watch = watch_of(run, 0)
    monkeypatch.setattr(script_watch, "ABORT_LIMIT_S", -1.0)
    watch.is_hang_found.set()
    assert watch.end_hang([])
