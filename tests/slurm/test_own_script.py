"""A user's own torchrun script on Slurm: it knows its time limit, stops, and is requeued."""

import datetime
import re

import pytest
import torch

from slurm_job_kit.jobs.base.files import read_json

from .cluster import Cluster
from .kit import Kit, Run

pytestmark = pytest.mark.plugin("scripts")


@pytest.mark.slow
def test_a_warned_script_is_requeued_and_completes(kit: Kit, cluster: Cluster) -> None:
    run = kit.submit("configs/own_script.yaml", "launch.args=[2000]")
    run.wait_for(run.dir.attempt(1).plan.exists, "the first attempt")
    end = datetime.datetime.fromisoformat(cluster.job(run.job_id)["EndTime"])
    assert read_json(run.dir.attempt(1).plan)["deadline"] == end.timestamp()
    asked = ("squeue", "--noheader", f"--jobs={run.job_id}", "--format=%e")
    assert float(cluster.run("env", "SLURM_TIME_FORMAT=%s", *asked).stdout) == end.timestamp()
    run.wait_for(lambda: "saved after step 100:" in run.log(), "the first checkpoint")
    cluster.run("scancel", "--signal=USR1", run.job_id)
    run.wait()
    first, second = run.attempts()
    assert (first["decision"], first["evidence"]["outcome"]) == ("requeue", "stopped")
    assert first["evidence"]["has_progress"]
    assert second["decision"] == "done"


def snapshotting(kit: Kit) -> Run:
    """A run of the tutorial's script, typed without a spec, which waits after its second epoch."""
    shape = ("slurm.nodes=2", "launch.nproc_per_node=2")
    run = kit.submit(*shape, "--", "python", "tests/own_scripts/snapshotting.py", "5", "1")
    run.wait_for(lambda: "epoch 1 saved" in run.log(), "epoch 1")
    return run


def epochs(run: Run, attempt: int) -> tuple[list[int], list[int]]:
    """The epoch at which each rank of an attempt began, and the epochs that rank 0 saved."""
    logs = [run.dir.attempt(attempt).rank_log(rank).read_text() for rank in range(4)]
    begun = [int(re.findall(r"rank \d begins at epoch (\d+)", log)[0]) for log in logs]
    return begun, [int(epoch) for epoch in re.findall(r"epoch (\d+) saved", logs[0])]


@pytest.mark.slow
def test_a_tutorial_script_submitted_twice_and_requeued_goes_on_from_its_own_snapshot(
    kit: Kit, cluster: Cluster
) -> None:
    first = snapshotting(kit)
    cluster.run("scontrol", "requeue", first.job_id)
    first.wait_for(lambda: first.log().count("begins at epoch") == 2, "attempt 2")
    first.wait()
    second = snapshotting(kit)
    (second.dir.work / "go").touch()
    second.wait()
    assert epochs(first, 1) == ([0] * 4, [0, 1])
    assert epochs(first, 2) == ([2] * 4, [2, 3, 4])
    assert epochs(second, 1) == ([0] * 4, [0, 1, 2, 3, 4])
    before, after = first.attempts()
    # The script does not stop, so KillWait may end the batch script before it records the attempt.
    assert before["cause"] in ("requeued", "lost")
    assert after["decision"] == "done"
    assert not before["evidence"]["has_progress"]  # no kit_stop, nothing in KIT_CHECKPOINT_DIR
    ends = [torch.load(run.dir.work / "snapshot.pt", weights_only=True) for run in (first, second)]
    assert torch.equal(*(end["MODEL_STATE"]["weight"] for end in ends))
    assert not list(first.dir.code.resolve().rglob("snapshot.pt"))
