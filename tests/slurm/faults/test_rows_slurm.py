"""Slurm stops a run: time limit, preemption, scancel (rows 1, 2, 11; on every proctrack row 8)."""

from __future__ import annotations

import pytest

from ..kit import Kit, Run
from . import harm_slurm, oracles
from .rows import Row
from .scenario import Untouched, start

on_every_proctrack = pytest.mark.parametrize(
    "proctrack", ["cgroup", "linuxproc", "pgid"], indirect=True
)


def assert_went_on(run: Run, untouched: Run, causes: list[str]) -> None:
    """BW, L0, one requeue for each cause, nothing left; all ranks stopped together."""
    oracles.bitwise(run, untouched)
    oracles.no_step_redone(run)
    oracles.requeues(run, len(causes))
    oracles.causes(run, [*causes, "completed"])
    oracles.nothing_left(run)
    for attempt in range(1, len(causes) + 1):
        oracles.stopped_together(run, attempt)


@on_every_proctrack
@pytest.mark.usefixtures("proctrack")
def test_row_01_time_limit(kit: Kit, untouched: Untouched, row: Row) -> None:
    paced = start(kit, "slurm.signal_lead_s=110")
    row.record(paced.run)
    paced.run.wait_for_step(2)
    harm_slurm.reach_time_limit(paced.run)
    paced.finish()
    assert_went_on(paced.run, untouched(), ["time_limit"])


@on_every_proctrack
@pytest.mark.usefixtures("proctrack")
def test_row_02_preemption_with_grace(kit: Kit, untouched: Untouched, row: Row) -> None:
    paced = start(kit)
    row.record(paced.run)
    paced.run.wait_for_step(2)
    harm_slurm.preempt(paced.run)
    paced.finish()
    assert_went_on(paced.run, untouched(), ["preemption"])


@on_every_proctrack
@pytest.mark.usefixtures("proctrack")
def test_row_11_scancel_in_a_step(kit: Kit, row: Row) -> None:
    run = start(kit).run
    row.record(run)
    run.wait_for_step(2)
    harm_slurm.scancel(run)
    assert run.wait("CANCELLED")["Restarts"] == "0"
    oracles.nothing_left(run)
    assert run.cluster.job_ids() == []
    record = run.attempts()[-1]
    assert (record["decision"], record["evidence"]["outcome"]) == ("cancel", "stopped")
    assert run.result()["status"] == "cancelled"
