"""A node that the run does without, or not (rows 42 to 44)."""

from pathlib import Path

import pytest

from . import oracles
from .rows import Row
from .scenario import AT_ONCE

pytestmark = pytest.mark.plugin("nodes")
BAD = "n2"
OFTEN = "checkpoint.every_steps=3"
STUB = Path(__file__).with_name("stub_gpus")
SCRIPT = "launch={script: configs/examples/plain.py, args: [--epochs, '2'], nproc_per_node: 1}"
GPUS = ("train=", "checkpoint=", SCRIPT)


def seen(all_nodes: int, one_node: str = "") -> str:
    """The override for the GPUs that the stub shows on all nodes, or as `n2=1` on one."""
    shown = f"STUB_GPUS={all_nodes} STUB_GPUS_OF={one_node}"
    return f"setup=['export PYTHONPATH={STUB} SLURM_GPUS_ON_NODE=2 {shown}']"


def test_row_42_a_node_passes_the_preflight_and_crashes_each_time(row: Row) -> None:
    """After its first crash the run goes on with it, after the second in a row without it."""
    run = row.start(OFTEN, f"launch.env.CRASH_NODE={BAD}", pace=AT_ONCE).run
    run.wait()

    first, second, third = run.attempts()
    (reason,) = first["evidence"]["plugins"]["nodes"]["reasons"]
    assert (reason["node"], reason["is_left_out"]) == (BAD, False)
    assert first["nodes"] == second["nodes"] and BAD not in third["nodes"]
    log = run.dir.job_log.read_text()
    assert f"node {BAD} is left out of the next attempts for 24 h: rank 1 on {BAD}: Runtime" in log
    assert run.cluster.job(run.job_id)["ExcNodeList"] == BAD
    oracles.ended(run, row.reference(), ["crash", "node", "completed"], 1)
    oracles.at_most_one_interval(run)


def test_row_43_a_failure_follows_the_run(row: Row) -> None:
    """It is held after the third attempt, on another node, and no node is left out any more."""
    run = row.start(OFTEN, "launch.env.CRASH_RANK='1'", pace=AT_ONCE).run
    run.wait("FAILED")

    assert BAD not in run.attempts()[-1]["nodes"]
    oracles.closed(run, ["crash", "node", "crash"], 1)
    result = run.result()
    told = f"the same failure on {BAD} and n3: the run is at fault, no node"
    assert result["status"] == "held" and str(result["reason"]).startswith(told)


def test_row_44_a_gpu_fewer_on_one_node(row: Row) -> None:
    """The run goes on without the node."""
    run = row.start(*GPUS, seen(2, f"{BAD}=1"), pace=AT_ONCE).run
    run.wait()

    first, second = run.attempts()
    (reason,) = first["evidence"]["plugins"]["nodes"]["reasons"]
    assert (reason["node"], reason["is_left_out"]) == (BAD, True)
    assert BAD not in second["nodes"]
    oracles.closed(run, ["node", "completed"], 1)


def test_row_44_a_gpu_fewer_on_all_nodes(row: Row) -> None:
    """It is no node's fault: held in the same allocation."""
    run = row.start(*GPUS, seen(1), pace=AT_ONCE).run
    run.wait("FAILED")

    assert not [each for each in run.attempts() if "nodes" in each["evidence"]["plugins"]]
    assert "CUDA's driver shows 1 GPU" in str(run.result()["reason"])
    oracles.closed(run, ["crash"] * 2, 0)
