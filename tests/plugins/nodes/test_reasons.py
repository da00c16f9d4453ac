"""What an attempt says against nodes."""

from dataclasses import replace

import pytest

from slurm_job_kit.jobs.contract import records
from slurm_job_kit.jobs.contract.kinds import Kind
from slurm_job_kit.jobs.contract.records.ended import Evidence
from slurm_job_kit.jobs.contract.records.nodes import AgentRecord, HangConclusion, RankError
from slurm_job_kit.jobs.contract.records.timeline import Timeline
from slurm_job_kit.jobs.plugins.nodes import suspects
from slurm_job_kit.jobs.plugins.nodes.reasons import reasons_of
from slurm_job_kit.jobs.plugins.nodes.records import Past
from slurm_job_kit.jobs.runs import fact_reader
from tests.core.run_files import opened

NOTHING = Evidence(None, "RUNNING", "None", (), False, False, "an error")
TRACE = 'File "/code/model.py", line 7, in forward'


def error(node, kind=Kind.UNKNOWN, text="ValueError: x", rank=0, **fields):
    """The error record of a rank."""
    return RankError(1.0 + rank, rank, node, text, kind, **fields)


BAD = error("n2", Kind.BAD_NODE)
PEER = error("n1", Kind.COLLECTIVE, "Connection closed by peer", rank=5, caused_by_peer=True)

# name: errors, what else is known -> (node, kind, whether it is left out at once) of each reason
SIGNS = {
    "a failed preflight": ([BAD, PEER], {}, [("n2", "bad_node", True)]),
    "two nodes, once each": (
        [BAD, error("n1", Kind.GPU_FAULT), error("n2", Kind.BAD_NODE, rank=1)],
        {},
        [("n1", "gpu_fault", True), ("n2", "bad_node", True)],
    ),
    "a full disk of all nodes": ([error("n2", Kind.DISK_FULL), PEER], {}, []),
    "a mistake": ([error("n2", Kind.USER_CODE, would_repeat=True), PEER], {}, []),
    "the first to crash": ([error("n2"), PEER], {}, [("n2", "unknown", False)]),
    "crashes of two nodes": ([error("n2"), error("n1", rank=1)], {}, []),
    "only lost peers": ([PEER], {}, []),
    "the silent one": (
        [error("n1", Kind.HANG)],
        {"hang": HangConclusion(0, "x", (1,), (1,), ("n2",))},
        [("n2", "hang", False)],
    ),
    "a rank without a word": ([PEER], {"gone": "n2"}, [("n2", "process_killed", False)]),
    "an agent of one node": ([], {"agents": ["n2: no python"]}, [("n2", "unknown", False)]),
    "fewer GPUs on one node": ([], {"gpus": [2, 1, 2]}, [("n2", "bad_node", True)]),
    "fewer GPUs on all nodes": ([], {"gpus": [1, 1, 1]}, []),
    "a silent node": ([PEER], {"unreachable_nodes": ("n2",)}, [("n2", "node_failure", True)]),
    "Slurm's word": (
        [PEER],
        {"states": {"n1": "ALLOCATED", "n2": "MIXED+DRAIN", "n3": "DOWN*"}},
        [("n2", "node_failure", True), ("n3", "node_failure", True)],
    ),
    "a node that is drained for later": (
        [error("n1"), PEER],
        {"states": {"n2": "MIXED+DRAIN"}},
        [("n1", "unknown", False)],
    ),
    "killed for memory": ([PEER], {"gone": "n2", "kind": Kind.OUT_OF_MEMORY}, []),
    "a stop": ([error("n2")], {"signals": ("SIGTERM",)}, []),
    "a job that Slurm ends": ([error("n2")], {"job_state": "COMPLETING"}, []),
    "without Slurm": ([error("n2")], {"job_state": "LOCAL"}, []),
    "a failed preflight here": ([BAD], {"job_state": "LOCAL"}, [("n2", "bad_node", True)]),
}


@pytest.mark.parametrize(("errors", "known", "expected"), SIGNS.values(), ids=SIGNS)
def test_whom_an_attempt_speaks_against(run, errors, known, expected):
    attempt = opened(run, 1, nodes=["n1", "n2", "n3"])
    for number, each in enumerate(errors):
        records.write(attempt.rank_error(number), each)
    for number, text in enumerate(known.get("agents", ())):
        attempt.agent_error(number).write_text(text)
    for number, count in enumerate(known.get("gpus", ())):
        record = AgentRecord(f"n{number + 1}", gpus=count)
        records.write(attempt.agent(number), record)
    if "gone" in known:
        Timeline(run, "rank-00007", 1).event("spawn", host=known["gone"], pid=1)
    if "hang" in known:
        records.write(attempt.hang, known["hang"])
    names = ("job_state", "signals", "kind", "unreachable_nodes")
    evidence = replace(NOTHING, **{name: known[name] for name in names if name in known})
    reasons = reasons_of(fact_reader.read(run, 1), evidence, known.get("states", {}))
    assert [(reason.node, reason.kind, reason.is_left_out) for reason in reasons] == expected


def test_two_crashes_in_the_same_line_are_the_same_failure(run):
    """Of different nodes, with other words, from the same checkpoint."""
    failures = []
    for number, node in enumerate(("n1", "n2"), 1):
        attempt = opened(run, number, nodes=["n1", "n2", "n3"])
        trace = f"Traceback\n  {TRACE}\nValueError: {node}"
        failed = error(node, text=f"ValueError: {node}", traceback=trace)
        records.write(attempt.rank_error(0), failed)
        (reason,) = reasons_of(fact_reader.read(run, number), NOTHING, {})
        failures.append(reason.failure)
    assert failures[0] == failures[1] != ""


def test_a_stale_handle_is_the_same_failure_in_any_cache_and_at_any_step(run):
    """Twice on one node it speaks against that node; on the next one, too, it is the run's."""
    found = []
    for number, (node, cache) in enumerate((("n1", "triton"), ("n1", "inductor"), ("n2", "x")), 1):
        attempt = opened(run, number, nodes=["n1", "n2", "n3"])
        text = f"OSError: [Errno 116] Stale file handle: '/net/{cache}'"
        trace = f'Traceback\n  File "/{cache}.py", line {number}, in f\n    f()\n{text}'
        failed = error(node, Kind.STALE_FILE, text, traceback=trace)
        records.write(attempt.rank_error(0), failed)
        found.append(reasons_of(fact_reader.read(run, number), NOTHING, {}))
    past = [Past(100.0, False, False, reasons) for reasons in found]
    (second,) = suspects.confirmed(found[1], past[:1], 0.0, lambda _: True)
    assert second.is_left_out
    past[1] = Past(101.0, False, False, (second,))
    assert [*suspects.left_out(past[:2], 0.0)] == ["n1"]
    assert "the run is at fault, no node" in str(suspects.followed(past[2], past[:2]))
    assert [*suspects.left_out(past, 0.0)] == []
