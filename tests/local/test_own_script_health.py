"""A user's own script that hangs on one node, one that only computes, and a bad node before it."""

import socket

import pytest

from slurm_job_kit.jobs.rundir import RunDir, read_json, read_jsonl
from tests.local.local_kit import REPOSITORY

FAULTY_NODE = REPOSITORY / "tests/local/faulty_node"
LIMIT_S = 2
OWN = f"""
name: own
slurm: {{nodes: 2}}
launch:
  script: SCRIPT
  max_crashes: 1
  hang_timeout_s: {LIMIT_S}
"""
# One rank leaves the others alone in a collective.
MEETING = """
import os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
print("met", flush=True)
dist.all_reduce(torch.ones(1))
if os.environ["RANK"] == "1":
    ALONE
dist.all_reduce(torch.ones(1))
os._exit(0)
"""
HANGS = "time.sleep(1000)"
# Longer than the limit, and without a line.
COMPUTES = f"""begun = time.monotonic()
    while time.monotonic() < begun + {4 * LIMIT_S}:
        pass"""


@pytest.fixture
def submit(kit, tmp_path):
    """Submits a script with more lines of the config; returns the exit status and the run."""

    def start(text, more=""):
        folder = tmp_path / "mine"
        folder.mkdir()
        (folder / "run.py").write_text(text)
        config = tmp_path / "own.yaml"
        config.write_text(OWN.replace("SCRIPT", str(folder / "run.py")) + more)
        status, _, stderr = kit.run("submit", config, "--cluster", "local")
        return status, RunDir((kit.root / "own/latest").resolve()), stderr

    return start


@pytest.mark.slow  # row 47 of the fault table, without a Slurm
def test_a_script_that_hangs_on_one_node_ends_as_a_hang_of_that_rank(kit, submit):
    status, run, stderr = submit(MEETING.replace("ALONE", HANGS))
    assert status == 1, stderr
    (record,) = read_jsonl(run.attempts)
    assert (record["cause"], record["evidence"]["kind"]) == ("hang", "hang")
    hang = read_json(run.attempt(1).hang)
    assert (hang["unresponsive"], hang["waited_for"]) == ([], [1])
    state = read_json(run.attempt(1).rank_hang(1))
    assert state["where"].endswith("run.py:8 <module>")
    stacks = "".join(path.read_text() for path in run.attempt(1).path.glob("stacks-*"))
    assert "rank 0 on " in stacks and "all_reduce" in stacks and "run.py:8" in stacks
    status, stdout, _ = kit.run("why", run.run_id)
    assert "rank 1 on " in stdout and "run.py:8" in stdout


def test_a_script_that_computes_in_silence_while_another_rank_waits_is_not_ended(submit):
    status, run, stderr = submit(MEETING.replace("ALONE", COMPUTES))
    assert status == 0, stderr
    (record,) = read_jsonl(run.attempts)
    assert record["cause"] == "completed" and not run.attempt(1).hang.exists()


def test_a_bad_node_is_named_before_a_script_starts(submit):
    setup = f"setup: ['export PYTHONPATH={FAULTY_NODE}']"
    bad = f"  env: {{FAULTY_RANK: '1', FAULTY_HARM: wrong}}\n{setup}"
    status, run, stderr = submit("raise SystemExit('started')", bad)
    assert status == 1, stderr
    (record,) = read_jsonl(run.attempts)
    assert (record["cause"], record["evidence"]["kind"]) == ("node", "bad_node")
    assert [sign["node"] for sign in record["evidence"]["signs"]] == [socket.gethostname()]
    assert (
        "preflight: a matrix product (torch.float32) is wrong in 1" in record["evidence"]["error"]
    )
    assert "preflight: a matrix product" in run.attempt(1).rank_log(1).read_text()
    events = [event for rank in (0, 1) for event in read_jsonl(run.timeline(f"rank-{rank:05d}"))]
    assert events and not [event for event in events if event["event"] == "spawn"]
