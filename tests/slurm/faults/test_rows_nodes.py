"""Nodes lose power or their network, slurmctld goes away (rows 17, 18, 19)."""

import time
from collections.abc import Callable, Sequence

import pytest

from slurm_job_kit.jobs.base.files import read_json
from slurm_job_kit.jobs.plugins import PLUGINS

from ..host import IS_SITE
from ..kit import Run
from . import harm_nodes, harm_slurm, oracles
from .rows import Row
from .scenario import Paced

FIRST, OTHER = 0, 1
HANG_TIMEOUT_S = 10
# Time for the watchdogs to exchange reports and write records, on a busy machine.
ABORT_LIMIT_S = HANG_TIMEOUT_S + 60
HAS_WATCHDOG = "health" in PLUGINS  # without it Slurm ends the attempt after its SlurmdTimeout
WATCHDOG = (f"launch.hang_timeout_s={HANG_TIMEOUT_S}",) if HAS_WATCHDOG else ()
SPEC = ("checkpoint.every_steps=5", *WATCHDOG)
# Longer than the 60 s after which the kit ends an srun step, as on real sites. Shorter than the
# default of 300 s, because a lost node keeps its job in COMPLETING for so long.
LONG_SLURMD_TIMEOUT_S = 150

where = pytest.mark.parametrize("index", [FIRST, OTHER], ids=["first_node", "other_node"])


def wait_for_aborts(run: Run, silent: int | None) -> None:
    """Wait until all ranks of the first attempt but one have written their error records."""
    ranks = {*range(3)} - {silent} if HAS_WATCHDOG else ()
    records = [run.dir.attempt(1).rank_error(rank) for rank in ranks]
    run.wait_for(lambda: all(each.exists() for each in records), "errors", ABORT_LIMIT_S)


def assert_came_back(row: Row, paced: Paced, lost: str) -> None:
    """One requeue without the lost node, BW, LK."""
    run = paced.run
    harm_slurm.wait_for_restarts(run, 1)
    paced.finish()
    oracles.bitwise(run, row.reference())
    oracles.at_most_one_interval(run)
    oracles.requeues(run, 1)
    oracles.causes(run, ["node", "completed"])
    assert lost not in run.attempts()[-1]["nodes"]


@where
def test_row_17_a_node_loses_power(row: Row, index: int) -> None:
    paced = row.begin(*SPEC, step=7)
    lost = harm_nodes.lose_power(paced.run, index)
    wait_for_aborts(paced.run, silent=index)
    assert_came_back(row, paced, lost)


@harm_slurm.needs_expedited
def test_row_17_a_node_of_an_expedited_job_loses_power(row: Row) -> None:
    """Slurm starts such a job again at once (EXPEDITING), and lets nobody change it until then."""
    row.kit.cluster.restart(extra_conf=harm_slurm.WITH_EXPEDITED)
    paced = row.begin(*SPEC, harm_slurm.EXPEDITED, step=7)
    assert_came_back(row, paced, harm_nodes.lose_power(paced.run, OTHER))


@where
def test_row_18_a_node_loses_its_network(row: Row, index: int) -> None:
    paced = row.begin(*SPEC, step=7)
    lost = harm_nodes.cut_off(paced.run, index)
    wait_for_aborts(paced.run, silent=index if IS_SITE else None)
    assert_came_back(row, paced, lost)


@pytest.mark.plugin("health")  # without it Slurm ends the attempt
def test_row_18_a_node_loses_its_network_and_slurm_is_slow_to_notice(row: Row) -> None:
    row.kit.cluster.restart(extra_conf=f"SlurmdTimeout={LONG_SLURMD_TIMEOUT_S}")
    paced = row.begin(*SPEC, step=7)
    cut = time.time()
    lost = harm_nodes.cut_off(paced.run, OTHER)
    assert_came_back(row, paced, lost)
    attempt = paced.run.attempts()[0]
    assert attempt["decision"] == "requeue" and attempt["evidence"]["unreachable_nodes"] == [lost]
    assert attempt["times"]["stop"] - cut < LONG_SLURMD_TIMEOUT_S


def by_signal(run: Run) -> None:
    run.cluster.run("scancel", "--signal=USR1", run.job_id)


@pytest.mark.parametrize(
    ("warn", "causes"),
    [
        (by_signal, ["time_limit"]),
        # A slurmctld that is killed before it saved its state forgets the PreemptTime.
        (harm_slurm.begin_preemption, ["preemption", "manual_stop"]),
    ],
)
def test_row_19_slurmctld_is_away_when_the_run_wants_its_requeue(
    row: Row, warn: Callable[[Run], object], causes: Sequence[str]
) -> None:
    paced = row.begin()
    run, first = paced.run, paced.run.dir.attempt(1)
    warn(run)
    # Not before the warning: a slurmctld that is killed may not have sent the signal.
    run.wait_for(first.stop_requested.exists, "an agent that was warned", 60)
    with harm_nodes.controller_away(run):
        assert not run.attempts(), "the attempt was closed before slurmctld was killed"
        run.wait_for(lambda: read_json(first.outcome), "the stop", 60)
    harm_slurm.wait_for_restarts(run, 1)
    paced.finish()
    cause = run.attempts()[0]["cause"]
    assert cause in causes
    oracles.went_on(run, row.reference(), cause)
