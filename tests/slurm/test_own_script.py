"""A user's own torchrun script on Slurm: it knows its time limit, stops, and is requeued."""

import datetime
import re
from pathlib import Path

import pytest
import torch

from slurm_job_kit.jobs.base.files import read_json

from .cluster import Cluster
from .faults import harm_slurm, oracles
from .kit import JOB_TIMEOUT_S, Kit, Run

pytestmark = pytest.mark.plugin("scripts")
# The script knows no stop.
OVERRIDES = (
    "launch.script=tests/own_scripts/snapshotting.py",
    "launch.args=['5', '1']",
    "launch.stop_signal=none",
    "launch.nproc_per_node=2",
)


@pytest.mark.slow
def test_a_warned_script_is_requeued_and_completes(cluster: Cluster, tmp_path: Path) -> None:
    kit = Kit(cluster, tmp_path)
    run = kit.submit("configs/own_script.yaml", "launch.args=[2000]")
    cluster.wait_for(run.dir.attempt(1).plan.exists, "the first attempt", 90)
    end = datetime.datetime.fromisoformat(cluster.job(run.job_id)["EndTime"])
    assert read_json(run.dir.attempt(1).plan)["deadline"] == end.timestamp()
    asked = ("squeue", "--noheader", f"--jobs={run.job_id}", "--format=%e")
    assert float(cluster.run("env", "SLURM_TIME_FORMAT=%s", *asked).stdout) == end.timestamp()
    cluster.wait_for(lambda: "saved after step 100:" in run.log(), "the first checkpoint", 90)
    cluster.run("scancel", "--signal=USR1", run.job_id)
    run.wait()
    first, second = run.attempts()
    assert (first["decision"], first["evidence"]["outcome"]) == ("requeue", "stopped")
    assert first["evidence"]["has_progress"]
    assert second["decision"] == "done"


def snapshotting(kit: Kit) -> Run:
    """A run of the tutorial's script, when it waits after its second epoch; 4 ranks."""
    run = kit.submit("configs/own_script.yaml", *OVERRIDES)
    wait = kit.cluster.wait_for
    wait(lambda: "epoch 1 saved" in run.log(), f"epoch 1 of {run.dir.path}", JOB_TIMEOUT_S)
    return run


def epochs(run: Run, attempt: int) -> tuple[list[int], list[int]]:
    """The epoch at which each rank of an attempt began, and the epochs that rank 0 saved."""
    logs = [run.dir.attempt(attempt).rank_log(rank).read_text() for rank in range(4)]
    begun = [int(re.findall(r"rank \d begins at epoch (\d+)", log)[0]) for log in logs]
    return begun, [int(epoch) for epoch in re.findall(r"epoch (\d+) saved", logs[0])]


@pytest.mark.slow
def test_a_tutorial_script_submitted_twice_and_requeued_goes_on_from_its_own_snapshot(
    cluster: Cluster, tmp_path: Path
) -> None:
    kit = Kit(cluster, tmp_path)
    first = snapshotting(kit)
    cluster.run("scontrol", "requeue", first.job_id)
    cluster.wait_for(lambda: first.log().count("begins at epoch") == 2, "attempt 2", JOB_TIMEOUT_S)
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


@pytest.mark.slow
def test_a_script_of_slow_steps_that_is_preempted_again_and_again_loses_no_step(
    cluster: Cluster, tmp_path: Path
) -> None:
    script = ("launch.script=tests/own_scripts/slow_steps.py", "launch.args=['3', '8']")
    run = Kit(cluster, tmp_path).submit("configs/own_script.yaml", *script)
    preempted_in = []
    for attempt in (1, 2):
        run.wait_for_events("first_step", attempt=attempt)
        preempted_in.append(run.events("first_step", attempt)[0]["step"] + 1)
        harm_slurm.preempt(run)
    run.wait()
    oracles.causes(run, ["preemption", "preemption", "completed"])
    oracles.no_step_redone(run)
    # Slurm's signal may come a moment later than the end of that step.
    stopped_after = [each["last_step"] for each in run.attempts()[:2]]
    pairs = zip(stopped_after, preempted_in, strict=True)
    assert all(stopped - step in (0, 1) for stopped, step in pairs), run.log()
