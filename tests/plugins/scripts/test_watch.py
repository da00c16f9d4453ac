"""A hang of a user's script is the time without any output or report of any rank."""

import os
import signal
import subprocess
import threading
import time

import pytest

from slurm_job_kit.jobs.attempt.decision import Ending, History, decide
from slurm_job_kit.jobs.contract import records
from slurm_job_kit.jobs.contract.kinds import Kind
from slurm_job_kit.jobs.contract.records.nodes import RankError
from slurm_job_kit.jobs.contract.records.timeline import Timeline
from slurm_job_kit.jobs.plugins.scripts.watch import ranks_of, watch
from slurm_job_kit.jobs.runs import fact_reader
from slurm_job_kit.jobs.runs.evidence import rank_evidence
from tests.core import run_files
from tests.core.waiting import wait_for

LIMIT_S = 1.0
# An agent with a torchrun, which has one rank.
AGENT = ("sh", "-c", "sh -c 'sleep 60; exit 3'; sleep 60")


@pytest.fixture
def begin(run):
    """Starts the watch of a node, with the logs of two ranks; returns its agent."""
    run_files.opened(run)
    agents = []
    for rank in (0, 1):
        run.attempt(1).rank_log(rank).write_text("begun\n")

    def start(host, limit_s=LIMIT_S):
        agent = subprocess.Popen(AGENT, start_new_session=True)
        agents.append(agent)
        wait_for(lambda: ranks_of(agent.pid))
        arguments = (run, 1, host, limit_s, agent.pid)
        threading.Thread(target=watch, args=arguments, daemon=True).start()
        return agent

    yield start
    run.attempt(1).stop_requested.touch()
    for each in agents:
        with each:
            os.killpg(each.pid, signal.SIGKILL)


def test_all_agents_find_a_hang_that_the_first_one_records_and_abort_their_ranks(run, begin):
    for attempt, host in ((7, "n0"), (8, "n1")):  # torchrun has sorted the nodes in its own way
        Timeline(run, "rank-00000", attempt).event("spawn", host=host, pid=1)
    agents = begin("n0"), begin(None)
    # Before each torchrun is killed, 30 s later.
    wait_for(lambda: not any(ranks_of(each.pid) for each in agents), limit_s=25)
    error = records.read(RankError, run.attempt(1).rank_error(0))
    assert error is not None and (error.kind, error.host) == (Kind.HANG, "n1")
    assert error.error.startswith("no output and no report of any rank for 1 s")


def test_a_rank_that_stays_after_another_has_ended_holds_the_run_as_done(run, begin, monkeypatch):
    monkeypatch.setattr(f"{watch.__module__}.ENDED_LIMIT_S", LIMIT_S)
    agent = begin("n0", "auto")
    time.sleep(2 * LIMIT_S)
    assert not run.attempt(1).hang.exists(), "without an end there is no limit"
    run.attempt(1).rank_ended(1).touch()
    wait_for(lambda: not ranks_of(agent.pid))
    run_files.node(run.attempt(1), 0, torchrun_exit=1)
    seen = rank_evidence(fact_reader.read(run, 1), "RUNNING")
    decided = decide(Ending(seen), History())
    assert (decided.action, seen.kind) == ("hold", Kind.NOT_ENDED)
    ends = "done but not ended: rank 1 exited with code 0, and rank 0 did not: no output"
    assert decided.reason.startswith(f"rank 0 on n0: {ends}")


@pytest.mark.parametrize("file", ["attempt-1/rank-00000.log", "progress.json", "checkpoints/a.pt"])
def test_a_rank_that_writes_reports_or_saves_shows_that_no_rank_hangs(run, begin, file):
    run.attempt(1).rank_ended(1).touch()
    begin("n0")
    path = run.path / file
    ends = time.monotonic() + 3 * LIMIT_S
    while time.monotonic() < ends:
        with open(path, "a") as log:
            log.write("step\n")
        time.sleep(LIMIT_S / 4)
        assert not run.attempt(1).hang.exists()


def test_a_stop_ends_the_watch(run, begin):
    agent = begin("n0")
    run.attempt(1).stop_requested.touch()
    time.sleep(2 * LIMIT_S)
    assert not run.attempt(1).hang.exists() and ranks_of(agent.pid)


def test_torchrun_is_killed_where_ranks_survive_their_abort(run, begin, monkeypatch):
    monkeypatch.setattr(f"{watch.__module__}.ABORT_LIMIT_S", 0.1)
    monkeypatch.setattr("signal.SIGABRT", signal.SIGCONT)
    agent = begin("n0")
    ranks = ranks_of(agent.pid)
    wait_for(lambda: ranks_of(agent.pid) != ranks, limit_s=25)  # they end after 60 s
