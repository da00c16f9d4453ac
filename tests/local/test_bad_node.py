"""The preflight under a real torchrun: a rank computes wrong products, stops or dies."""

import json
import socket
import time

import pytest

from slurm_job_kit.jobs.rundir import read_json, read_jsonl
from tests.local.test_trainer import REPOSITORY, end, make_run, rank_logs, start_attempt

FAULTY_NODE = REPOSITORY / "tests/local/faulty_node"
RANKS = 3


# The ranks of the first are started by exec, as those of nodes with GPUs.
@pytest.fixture(
    params=[
        pytest.param(("wrong", False), marks=pytest.mark.slow),
        ("stop", True),
        pytest.param(("die", True), marks=pytest.mark.slow),
    ],
    ids=lambda each: each[0],
)
def harmed(request, tmp_path):
    """(the harm, the run's first attempt, seconds from the ranks' meeting to the end)."""
    harm, fork = request.param
    run = make_run(tmp_path / "run", fork=fork)
    run.owner.write_text(json.dumps({"attempt": 1}))
    fault = {"FAULTY_RANK": "1", "FAULTY_HARM": harm}
    fault["PYTHONPATH"] = f"{FAULTY_NODE}:{REPOSITORY}"
    status, output = end(start_attempt(run, 1, RANKS, **fault), limit_s=150)
    assert status != 0
    output += rank_logs(run, 1)
    records = {rank: read_json(run.attempt(1).rank_error(rank)) for rank in range(RANKS)}
    (began,) = [e["t"] for e in read_jsonl(run.timeline("rank-00000")) if e["event"] == "import"]
    return harm, records, time.time() - began, output


def test_a_faulty_rank_is_named_as_a_bad_node_and_a_dead_one_is_not(harmed):
    harm, records, took_s, output = harmed
    peers = [records[0], records[2]]
    if harm == "die":  # a kill is no sign of a bad node
        assert records[1] is None
        assert not [record for record in peers if record and record["kind"] == "bad_node"]
        return
    assert (records[1]["kind"], records[1]["rank"]) == ("bad_node", 1)
    assert records[1]["host"] == socket.gethostname() and not records[1]["caused_by_peer"]
    told = {
        "wrong": "preflight: a matrix product (torch.float32) is wrong in 1 of 65536 numbers",
        "stop": "preflight: it did not answer within 5 s",
    }[harm]
    assert records[1]["error"].startswith(told)
    assert told.removeprefix("preflight: ") in output
    for peer in filter(None, peers):  # a peer may be ended before it wrote a record
        assert (peer["kind"], peer["caused_by_peer"]) == ("unknown", True)
        assert peer["error"].startswith("preflight: rank 1 on ")
    assert took_s < 60  # and not gloo's 10 minutes
