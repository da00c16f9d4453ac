"""After a crash the agents that wait continue the run; new ones do where one of these was lost."""

import os
import re
import signal
from pathlib import Path

import pytest

from slurm_job_kit.jobs.procfs import parent_of
from slurm_job_kit.jobs.rundir import RunDir, read_jsonl
from tests.local.local_kit import wait_for

SPEC = """
name: tiny
slurm: {nodes: 2}
launch: {standby_after_s: 1}
train: {model: mlp, dataset: breast_cancer, epochs: 1000000, micro_batch_size: 8}
checkpoint: {every_steps: 200}
log: {every_steps: 100000}
"""
# It starts a server on the node, as setup lines may; it outlives the shell.
SETUP = """
setup: ["(setsid sleep 1000 >/dev/null 2>&1 </dev/null & echo $! >> %s)"]
"""


def command_line(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def waiting(kit):
    """The processes that have imported torch for the next attempt, and have no ranks yet."""
    pids = kit.processes()
    standbys = {pid for pid in pids if re.search(r"torch._dynamo \d+ $", command_line(pid))}
    parents = {parent_of(pid) for pid in pids}
    return {pid for pid in standbys - parents if parent_of(pid) not in standbys}


def spawned(run, attempt):
    """The pids of the ranks that have done a step of an attempt."""
    events = [read_jsonl(run.timeline(f"rank-{rank:05d}")) for rank in (0, 1)]
    here = [[event for event in each if event["attempt"] == attempt] for each in events]
    if not all("first_step" in [event["event"] for event in each] for each in here):
        return []
    return [event["pid"] for each in here for event in each if event["event"] == "spawn"]


def kill_a_rank(kit, run, attempt):
    """Kill a rank of an attempt; returns the processes that wait, when there are two."""
    pids = wait_for(lambda: spawned(run, attempt), f"no step of attempt {attempt}")
    standbys = wait_for(lambda: len(pair := waiting(kit)) == 2 and pair, "no standby")
    return pids[1], standbys


@pytest.mark.slow
def test_a_retry_is_started_by_those_that_wait_unless_one_was_lost(kit):
    config = kit.root.with_name("tiny.yaml")
    helpers = kit.root.with_name("helpers")
    config.write_text(SPEC + SETUP % helpers)
    process = kit.start("submit", config, "--cluster", "local", "--no-check")
    latest = kit.root / "tiny/latest"
    wait_for((latest / "timeline/rank-00001.jsonl").exists, "no rank")
    run = RunDir(latest.resolve())

    victim, standbys = kill_a_rank(kit, run, 1)
    os.kill(victim, signal.SIGKILL)
    second = wait_for(lambda: spawned(run, 2), "no step of attempt 2")
    assert {parent_of(pid) for pid in second} == standbys
    # Of the first agents the helpers are gone; those that waited need theirs.
    started = [int(pid) for pid in helpers.read_text().split()]
    assert [bool(command_line(pid)) for pid in started[:4]] == [False, False, True, True]

    victim, standbys = kill_a_rank(kit, run, 2)
    lost = min(standbys)
    agent = parent_of(lost)
    assert agent is not None
    os.kill(agent, signal.SIGKILL)
    wait_for(lambda: command_line(lost) == "", "its process outlives the agent")
    os.kill(victim, signal.SIGKILL)
    third = wait_for(lambda: spawned(run, 3), "no step of attempt 3")
    assert not {parent_of(pid) for pid in third} & standbys

    process.send_signal(signal.SIGINT)
    status, _, stderr = kit.end(process)
    assert status == 130, stderr
    assert kit.kill() == []
    assert [line["cause"] for line in read_jsonl(run.attempts)] == ["crash", "crash", "interrupted"]
