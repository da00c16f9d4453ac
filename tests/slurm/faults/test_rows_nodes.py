"""Nodes lose power or their network, slurmctld goes away (rows 17, 18, 19)."""

from __future__ import annotations

import time

import pytest

from slurm_job_kit.jobs.rooms import ROOMS
from slurm_job_kit.jobs.rundir import read_json

from ..host import IS_SITE
from ..kit import Kit, Run
from . import harm_nodes, harm_slurm, oracles
from .rows import Row
from .scenario import Paced, ReferenceRuns, begin

FIRST, OTHER = 0, 1
HANG_TIMEOUT_S = 10
# Time for the watchdogs to exchange reports and write records, on a busy machine.
ABORT_LIMIT_S = HANG_TIMEOUT_S + 60
HAS_WATCHDOG = "health" in ROOMS  # without it Slurm ends the attempt after its SlurmdTimeout
WATCHDOG = (f"launch.hang_timeout_s={HANG_TIMEOUT_S}",) if HAS_WATCHDOG else ()
SPEC = ("checkpoint.every_steps=5", *WATCHDOG)
# Longer than the 60 s after which the kit ends an srun step, as on real sites. Shorter than the
# default of 300 s, because a lost node keeps its job in COMPLETING for so long.
LONG_SLURMD_TIMEOUT_S = 150

where = pytest.mark.parametrize("index", [FIRST, OTHER], ids=["first_node", "other_node"])


def wait_for_aborts(run: Run, silent: int | None) -> None:
    """Wait until all ranks of the first attempt but one have written their error records."""
    if not HAS_WATCHDOG:
        return
    records = [run.dir.attempt(1).rank_error(rank) for rank in range(3) if rank != silent]
    run.cluster.wait_for(
        lambda: all(record.exists() for record in records), "the ranks' errors", ABORT_LIMIT_S
    )


def assert_came_back(paced: Paced, reference: ReferenceRuns, lost: str, cause: str) -> None:
    """One requeue without the lost node, BW, LK, and the cause is recorded."""
    run = paced.run
    harm_slurm.wait_for_restarts(run, 1)
    paced.finish()
    oracles.bitwise(run, reference())
    oracles.at_most_one_interval(run)
    oracles.requeues(run, 1)
    oracles.causes(run, [cause, "completed"])
    assert lost not in run.attempts()[-1]["nodes"]


@where
def test_row_17_a_node_loses_power(
    kit: Kit, reference: ReferenceRuns, row: Row, index: int
) -> None:
    paced = begin(kit, row, *SPEC, step=7)
    lost = harm_nodes.lose_power(paced.run, index)
    wait_for_aborts(paced.run, silent=index)
    assert_came_back(paced, reference, lost, "node")


@harm_slurm.needs_expedited
def test_row_17_a_node_of_an_expedited_job_loses_power(
    kit: Kit, reference: ReferenceRuns, row: Row
) -> None:
    """Slurm starts such a job again at once (EXPEDITING), and lets nobody change it until then."""
    kit.cluster.restart(extra_conf=harm_slurm.WITH_EXPEDITED)
    paced = begin(kit, row, *SPEC, harm_slurm.EXPEDITED, step=7)
    lost = harm_nodes.lose_power(paced.run, OTHER)
    assert_came_back(paced, reference, lost, "node")


@where
def test_row_18_a_node_loses_its_network(
    kit: Kit, reference: ReferenceRuns, row: Row, index: int
) -> None:
    paced = begin(kit, row, *SPEC, step=7)
    lost = harm_nodes.cut_off(paced.run, index)
    wait_for_aborts(paced.run, silent=index if IS_SITE else None)
    assert_came_back(paced, reference, lost, "node")


def test_row_18_a_node_loses_its_network_and_slurm_is_slow_to_notice(
    kit: Kit, reference: ReferenceRuns, row: Row
) -> None:
    kit.cluster.restart(extra_conf=f"SlurmdTimeout={LONG_SLURMD_TIMEOUT_S}")
    paced = begin(kit, row, *SPEC, step=7)
    cut = time.time()
    lost = harm_nodes.cut_off(paced.run, OTHER)
    assert_came_back(paced, reference, lost, "node")
    attempt = paced.run.attempts()[0]
    assert attempt["decision"] == "requeue" and attempt["evidence"]["unreachable_nodes"] == [lost]
    assert attempt["times"]["stop"] - cut < LONG_SLURMD_TIMEOUT_S


def stop_without_controller(run: Run) -> None:
    """Kill slurmctld when an agent of the first attempt was warned; start it again after the stop.

    Not before the warning: a slurmctld that is killed may not have sent the signal.
    """
    first = run.dir.attempt(1)
    run.cluster.wait_for(first.stop_requested.exists, "an agent was warned", 60)
    with harm_nodes.controller_away(run):
        assert not run.attempts(), "the attempt was closed before slurmctld was killed"
        run.cluster.wait_for(lambda: read_json(first.outcome), "the first attempt stopped", 60)


def assert_requeued_once(paced: Paced, reference: ReferenceRuns, *causes: str) -> None:
    """BW L0 R1 NO; the first attempt ended by one of the causes."""
    run = paced.run
    harm_slurm.wait_for_restarts(run, 1)
    paced.finish()
    oracles.bitwise(run, reference())
    oracles.no_step_redone(run)
    oracles.requeues(run, 1)
    first = run.attempts()[0]["cause"]
    assert first in causes, first
    oracles.causes(run, [first, "completed"])
    oracles.nothing_left(run)


def test_row_19_slurmctld_is_away_when_the_run_wants_its_requeue(
    kit: Kit, reference: ReferenceRuns, row: Row
) -> None:
    paced = begin(kit, row)
    kit.cluster.run("scancel", "--signal=USR1", paced.run.job_id)
    stop_without_controller(paced.run)
    assert_requeued_once(paced, reference, "time_limit")


def test_row_19_slurmctld_goes_away_in_a_preemption(
    kit: Kit, reference: ReferenceRuns, row: Row
) -> None:
    paced = begin(kit, row)
    harm_slurm.begin_preemption(paced.run)
    stop_without_controller(paced.run)
    # A slurmctld that is killed before it saved its state forgets the PreemptTime.
    assert_requeued_once(paced, reference, "preemption", "manual_stop")
