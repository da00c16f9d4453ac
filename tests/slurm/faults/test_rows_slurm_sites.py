"""Sites that preempt in other ways, and saves that do not fit (rows 2, 3, 4, 6, 46)."""

import time
from pathlib import Path

import pytest

from ..conf import Preemption
from ..kit import Run
from . import harm_processes, harm_slurm, oracles
from .rows import Row
from .scenario import Paced
from .test_rows_sites import successor
from .test_rows_slurm import start_on_a_disk, wait_for_save_in_flight

SHORT_GRACE_S, SHORT_KILL_WAIT_S = 4, 3
KILL_WAIT_S = 5
OLDER = "step-00000004"
REST_S = 7  # of the save that a stop meets; it began before the stop


def assert_preempted(row: Row, cause: str, word: str) -> Run:
    paced = row.begin(*filter(None, [word]))
    harm_slurm.preempt(paced.run)
    paced.finish()
    oracles.went_on(paced.run, row.reference(), cause)
    return paced.run


@harm_slurm.needs_expedited
def test_row_02_preemption_of_an_expedited_job(row: Row) -> None:
    row.kit.cluster.restart(extra_conf=harm_slurm.WITH_EXPEDITED)
    assert_preempted(row, "preemption", harm_slurm.EXPEDITED)


def test_row_03_preemption_with_the_job_s_own_signal(row: Row) -> None:
    row.kit.cluster.restart(extra_conf=harm_slurm.OWN_SIGNAL)
    run = assert_preempted(row, "preemption", "")
    assert run.attempts()[0]["evidence"]["signals"] == ["SIGUSR1"]


@pytest.mark.usefixtures("patient_site")
def test_row_04_preemption_without_grace(row: Row) -> None:
    """The save fits into KillWait."""
    # Slurm has requeued the job by then, and no longer shows the preemption.
    assert_preempted(row, "requeued", "slurm.partition=nograce")


def hold_the_second_save(row: Row, disk: Path, *words: str) -> Paced:
    """A run that has a checkpoint of step 4, and whose next save does not end."""
    paced = row.start(f"launch.env.DISK_FILE={disk}", "checkpoint.every_steps=4", *words)
    paced.run.wait_for((paced.run.dir.checkpoints / OLDER).exists, OLDER)
    paced.run.wait_for_step(5)
    disk.touch()
    return paced


def assert_older_is_left(run: Run) -> None:
    checkpoints = run.dir.checkpoints
    assert (checkpoints / OLDER).exists() and not (checkpoints / "step-00000008").exists()


def test_row_06_save_longer_than_the_grace(row: Row, disk: Path) -> None:
    grace = Preemption(grace_s=SHORT_GRACE_S)
    row.kit.cluster.restart(extra_conf=f"KillWait={SHORT_KILL_WAIT_S}", preemption=grace)
    paced = hold_the_second_save(row, disk)
    run = paced.run
    harm_slurm.preempt(run)
    # Slurm counts the restart when the grace is over, and kills KillWait later.
    run.wait_for(lambda: not run.cluster.job_processes(), "SIGKILL", 60)
    assert_older_is_left(run)
    disk.unlink()
    paced.finish()
    assert run.attempts()[1]["first_step"] == 5
    first = run.attempts()[0]
    assert first["evidence"]["signals"] == ["SIGTERM"]
    # The batch shell may die before it records the attempt.
    assert first["cause"] in ("lost", "requeued"), first
    oracles.ended(run, row.reference(), [first["cause"], "completed"], 1)
    oracles.at_most_one_interval(run)


@pytest.mark.plugin("sites")
@pytest.mark.usefixtures("patient_site")
def test_row_06_save_longer_than_what_is_left_before_the_time_limit(row: Row, disk: Path) -> None:
    """The limit ends the job in its save. Slurm requeues no such job, so a successor continues."""
    paced = hold_the_second_save(row, disk, "slurm.signal_lead_s=5")
    run = paced.run
    first = harm_processes.tree(run)
    harm_slurm.begin_time_limit(run)
    run.wait("TIMEOUT", 300)
    run.wait_for(lambda: all(map(harm_processes.is_gone, first)), "SIGKILL", 120)
    assert_older_is_left(run)
    waiting = successor(run)
    disk.unlink()
    paced.hurry()
    waiting.wait()
    assert run.attempts()[1]["first_step"] == 5
    # The saves that were due meanwhile were postponed: the ranks train on until the warning.
    assert run.result()["steps_redone"] == run.attempts()[0]["last_step"] - 4
    oracles.ended(run, row.reference(), ["time_limit", "completed"])


@pytest.mark.parametrize(("lead_s", "is_saved"), [(20, False), (120, True)])
def test_row_46_a_stop_that_meets_a_save(row: Row, disk: Path, lead_s: int, is_saved: bool) -> None:
    """After a save of more than a quarter of slurm.signal_lead_s the stop does no second one."""
    grace = Preemption(grace_s=lead_s)
    row.kit.cluster.restart(extra_conf=f"KillWait={KILL_WAIT_S}", preemption=grace)
    disk.touch()
    paced = start_on_a_disk(row, disk, f"slurm.signal_lead_s={lead_s}")
    run = paced.run
    wait_for_save_in_flight(run)
    harm_slurm.begin_preemption(run)
    run.wait_for_events("stop_seen", 3)
    time.sleep(REST_S)  # the disk is so slow
    disk.unlink()
    harm_slurm.wait_for_restarts(run, 1)
    paced.finish()
    first, last_step = run.attempts()[0], run.attempts()[0]["last_step"]
    assert first["evidence"]["outcome"] == "stopped" and first["times"]["stop_s"] < lead_s
    assert first["checkpoint"] == f"step-{last_step if is_saved else 2:08d}"
    told = f"no time to save step {last_step}: "
    assert (told in run.dir.attempt(1).rank_log(0).read_text()) != is_saved
    if is_saved:
        oracles.no_step_redone(run)
    else:
        oracles.at_most_one_interval(run)
        assert run.result()["steps_redone"] == last_step - 2 > 0
    oracles.ended(run, row.reference(), ["preemption", "completed"], 1)
    oracles.stopped_together(run, 1)
