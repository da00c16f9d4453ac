"""A node is lost where the run can go on in the same allocation (rows 45 and 48)."""

from pathlib import Path

import pytest

from . import data, harm_nodes, harm_slurm, oracles
from .rows import Row
from .scenario import AT_ONCE
from .test_rows_spec import UNEVEN_BATCH, expected_samples, trained_on

pytestmark = pytest.mark.plugin("nodes")
SPARE = ("slurm.spare_nodes=1", "checkpoint.every_steps=5")
# As on real sites Slurm notices after minutes that a node is lost.
SLURM_NOTICES_S = 150
LATE = f"SlurmdTimeout={SLURM_NOTICES_S}"


def test_row_45_a_node_loses_power_and_a_spare_takes_its_place(row: Row) -> None:
    """In the same allocation, without a requeue."""
    row.kit.cluster.restart(extra_conf=LATE)
    paced = row.begin(*SPARE, step=7)
    run = paced.run
    assert run.attempts() == [] and len(harm_nodes.nodes_of(run)) == 3
    lost = harm_nodes.lose_power(run, 1)
    run.wait_for(run.attempts, "the end of the attempt", SLURM_NOTICES_S - 30)
    paced.finish()

    first, second = run.attempts()
    assert (first["decision"], second["nodes"]) == ("retry", ["n1", "n3", "n4"])
    assert first["evidence"]["unreachable_nodes"] == [lost]
    oracles.retried(run, row.reference(), "node")


def test_row_45_the_first_node_is_left_out(row: Row) -> None:
    """The agents of the next attempt meet on another one, in the same allocation."""
    run = row.start(*SPARE, "launch.env.CRASH_NODE=n1", pace=AT_ONCE).run
    run.wait()

    assert [attempt["nodes"] for attempt in run.attempts()][1:] == [
        ["n1", "n2", "n3"],
        ["n2", "n3", "n4"],
    ]
    oracles.ended(run, row.reference(), ["crash", "node", "completed"], 0)


def test_row_45_the_node_of_the_batch_script_is_lost(row: Row) -> None:
    """Slurm starts the job again."""
    paced = row.begin(*SPARE, step=7)
    lost = harm_nodes.lose_power(paced.run, 0)
    harm_slurm.wait_for_restarts(paced.run, 1)
    paced.run.cluster.power_on(lost)
    paced.finish()

    oracles.ended(paced.run, row.reference(), ["lost", "completed"], 1)


def test_row_48_a_node_is_lost_and_fewer_go_on(row: Row, tmp_path: Path) -> None:
    """In the same allocation. A start takes what it gets: two nodes at least, three at most."""
    row.kit.cluster.restart(extra_conf=LATE)
    folder = tmp_path / "samples"
    folder.mkdir()
    paced = row.begin(
        *("slurm.nodes=2-3", "checkpoint.every_steps=5", f"train.global_batch_size={UNEVEN_BATCH}"),
        *(data.RECORDED, f"launch.env.{data.FOLDER}={folder}"),
        step=7,
    )
    run, cluster = paced.run, paced.run.cluster
    assert harm_nodes.nodes_of(run) == ["n1", "n2", "n3"]
    for node in ("n2", "n4"):
        cluster.power_off(node)
    run.wait_for(run.attempts, "the end of the attempt", SLURM_NOTICES_S - 30)
    run.wait_for_step(12)
    assert harm_slurm.restarts(run) == 0
    # Slurm may not know yet that n4 is gone; 26.05, and 22.05 once, made no step of a job with it.
    cluster.run("scontrol", "update", "NodeName=n4", "Reason=test", "State=DOWN")
    harm_slurm.begin_preemption(run, "--nodes=2", "--nodelist=n1,n3")
    harm_slurm.wait_for_restarts(run, 1)
    run.wait_for_step(17)
    paced.pace.write_text("4")  # seconds a step: Slurm needs some until it gives the node to a job
    cluster.power_on("n4")  # not n2: Slurm 22.05 ends there what later starts of the job begin
    harm_slurm.begin_preemption(run, "--nodes=3")
    harm_slurm.wait_for_restarts(run, 2)
    paced.finish()

    nodes = [" ".join(attempt["nodes"]) for attempt in run.attempts()]
    assert nodes == ["n1 n2 n3", "n1 n3", "n1 n3", "n1 n3 n4"]
    oracles.closed(run, ["node", "preemption", "preemption", "completed"], 2)
    samples = expected_samples(UNEVEN_BATCH)
    _, after, _, last = (attempt["first_step"] for attempt in run.attempts())
    trained = trained_on(run, folder, (2, 2, 3), UNEVEN_BATCH)
    assert trained == {step: samples[step] for step in samples if step >= after - 1}
    result = run.result()
    assert result["exactness"] == "same samples"
    steps = f"then 2 after step {after - 1}, then 3 after step {last - 1}"
    assert result["exactness_reason"] == f"world size was 3, {steps}"
    oracles.at_most_one_interval(run)
