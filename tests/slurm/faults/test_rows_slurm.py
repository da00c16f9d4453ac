"""Slurm stops a run: time limit, preemption, scancel (rows 1, 2, 11; on every proctrack row 8)."""

import signal
from pathlib import Path

import pytest

from ..kit import Run
from . import harm_processes, harm_slurm, oracles
from .rows import Row
from .scenario import NAMED_QOS, Paced

on_every_proctrack = pytest.mark.parametrize(
    "proctrack", ["cgroup", "linuxproc", "pgid"], indirect=True
)


def assert_went_on(run: Run, reference: Run, cause: str) -> None:
    """BW, L0, R1, NO; all ranks stopped together."""
    oracles.went_on(run, reference, cause)
    oracles.stopped_together(run, 1)


@on_every_proctrack
@pytest.mark.usefixtures("proctrack")
def test_row_01_time_limit(row: Row) -> None:
    paced = row.begin("slurm.signal_lead_s=110")
    harm_slurm.reach_time_limit(paced.run)
    paced.finish()
    assert_went_on(paced.run, row.reference(), "time_limit")


@on_every_proctrack
@pytest.mark.usefixtures("proctrack")
def test_row_02_preemption_with_grace(row: Row) -> None:
    paced = row.begin()
    harm_slurm.preempt(paced.run)
    paced.finish()
    assert_went_on(paced.run, row.reference(), "preemption")


def start_on_a_disk(row: Row, disk: Path, *words: str) -> Paced:
    words = (*words, f"launch.env.DISK_FILE={disk}", "checkpoint.every_steps=2")
    return row.start(*words)


def wait_for_save_in_flight(run: Run) -> None:
    run.wait_for(lambda: list(run.dir.checkpoints.glob(".tmp-step-*")), "a save in flight")


def assert_stays_cancelled(run: Run) -> None:
    """The job is cancelled and stays so, with a checkpoint of its last step."""
    oracles.stays_cancelled(run)
    record = run.attempts()[-1]
    assert (record["decision"], record["cause"]) == ("cancel", "cancelled")
    assert record["evidence"]["outcome"] == "stopped"
    assert record["checkpoint"] == f"step-{record['last_step']:08d}"
    assert run.result()["status"] == "cancelled"


@on_every_proctrack
@pytest.mark.usefixtures("proctrack", "patient_site")
def test_row_11_scancel_in_a_step(row: Row) -> None:
    run = row.begin().run
    harm_slurm.scancel(run)
    assert_stays_cancelled(run)


@on_every_proctrack
@pytest.mark.usefixtures("proctrack", "patient_site")
def test_row_11_scancel_in_a_save(row: Row, disk: Path) -> None:
    disk.touch()
    run = start_on_a_disk(row, disk).run
    wait_for_save_in_flight(run)
    harm_slurm.scancel(run)
    run.wait_for_events("stop_seen", 3)
    disk.unlink()
    assert_stays_cancelled(run)


@on_every_proctrack
@pytest.mark.usefixtures("proctrack", "patient_site")
def test_row_11_scancel_in_a_grace(row: Row, disk: Path) -> None:
    run = start_on_a_disk(row, disk).run
    run.wait_for_step(3)
    disk.touch()
    urgent = harm_slurm.begin_preemption(run)
    run.wait_for_events("stop_seen", 3)
    harm_slurm.scancel(run)
    run.wait_for(lambda: run.cluster.job(run.job_id)["JobState"] != "RUNNING", "scancel")
    disk.unlink()
    run.cluster.wait_job(urgent, "COMPLETED", 120)  # no other job may be left in the queue
    assert_stays_cancelled(run)


# What the late scontrol does, and how many starts Slurm counts then.
LATE = """#!/bin/sh
export PATH={path}
case "$*" in
    {pattern}) touch {asked}; {commands} ;;
    *) exec scontrol "$@" ;;
esac
"""
SCANCEL = 'scancel "$SLURM_JOB_ID"'


def start_with_late_scontrol(
    row: Row, folder: Path, pattern: str, commands: str, *overrides: str
) -> Run:
    """A run whose batch script has the real scontrol, and more at the calls of a shell pattern."""
    late = folder / "bin" / "scontrol"
    late.parent.mkdir()
    parts = {"path": row.kit.cluster.env["PATH"], "asked": folder / "asked"}
    late.write_text(LATE.format(pattern=pattern, commands=commands, **parts))
    late.chmod(0o755)
    run = row.start_with_path(late.parent, *overrides).run
    run.wait_for_step(2)
    return run


@pytest.mark.usefixtures("patient_site")
@pytest.mark.parametrize(
    ("commands", "restarts"),
    [(f'{SCANCEL}; scontrol "$@"', 0), (f'scontrol "$@"; {SCANCEL}', 1)],
    ids=["before", "after"],
)
def test_row_11_scancel_just_before_our_requeue_lands(
    row: Row, tmp_path: Path, commands: str, restarts: int
) -> None:
    """A plain `scontrol requeue` would bring the cancelled job back to life."""
    # By hand, because since 24.05 Slurm itself requeues a job in the grace of its preemption.
    run = start_with_late_scontrol(row, tmp_path, '"requeue "*', commands)
    harm_processes.warn_rank(run, 1, signal.SIGTERM)
    oracles.stays_cancelled(run, restarts)
    assert (tmp_path / "asked").exists()
    assert run.attempts()[0]["cause"] in ("cancelled", "manual_stop")[: 1 + restarts]


@pytest.mark.plugin("sites")
@pytest.mark.usefixtures("patient_site")
def test_row_11_scancel_just_before_slurms_own_requeue(row: Row, tmp_path: Path) -> None:
    """`close` has read the job as preempted and asks for the settings; then the scancel comes."""
    config = ('"show config"', f'scontrol "$@"; {SCANCEL}', *NAMED_QOS)
    run = start_with_late_scontrol(row, tmp_path, *config)
    urgent = harm_slurm.begin_preemption(run)
    run.cluster.wait_job(urgent, "COMPLETED", 120)  # no other job may be left in the queue
    oracles.stays_cancelled(run)
    assert (tmp_path / "asked").exists()
    # The kit had left the requeue to Slurm before.
    oracles.causes(run, ["preemption" if harm_slurm.LEFT_TO_SLURM else "cancelled"])
