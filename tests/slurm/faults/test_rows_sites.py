"""Sites where a requeue is not enough, or commands are missing (row 5; row 15 with a guard)."""

import sys
from pathlib import Path

import pytest

from slurm_job_kit.jobs.base.files import read_json

from ..conf import Preemption
from ..host import IS_SITE, OWN_MOUNTS
from ..kit import PACED, Run
from ..user_site import QOS_OF_PARTITION
from . import harm_processes, harm_slurm, oracles
from .conftest import PATIENT
from .rows import Row
from .scenario import Paced

# Also tests of fast rows: each restarts the cluster, or tests a detail of its row.
pytestmark = [pytest.mark.fault, pytest.mark.plugin("sites")]

GUARD = "slurm.restart=successor"
# Hides Slurm's commands from the programs that it starts, as a container does.
WRAP = f"""#!/bin/sh
exec {OWN_MOUNTS} sh -c '
for name in scontrol squeue sbatch scancel srun sinfo sacct; do
    for path in $(which -a $name); do mount --bind /dev/null "$path"; done
done
! scontrol --version 2>/dev/null && exec "$@"
' sh "$@"
"""


def successor(run: Run) -> Run:
    """The job that waits for the end of the run's job, once it is queued."""

    def noted() -> str | None:
        record = read_json(run.dir.successor)
        return record["job_id"] if record and record["after"] == run.job_id else None

    return Run(run.cluster, run.wait_for(noted, f"a successor of job {run.job_id}"), run.dir)


def assert_went_on(run: Run, reference: Run, causes: list[str]) -> None:
    oracles.ended(run, reference, causes)
    assert run.cluster.job_ids() == []


def begin_where_preemption_cancels(row: Row, grace_s: int) -> tuple[Paced, Run]:
    """A run and its successor."""
    row.kit.cluster.restart(extra_conf=PATIENT, preemption=Preemption("CANCEL", grace_s))
    paced = row.begin()
    return paced, successor(paced.run)


def test_row_05_preemption_that_cancels_after_a_grace_is_requeued_in_it(row: Row) -> None:
    """scontrol requeue works in the grace; the successor keeps waiting meanwhile."""
    paced, waiting = begin_where_preemption_cancels(row, grace_s=30)
    harm_slurm.preempt(paced.run)
    assert row.kit.cluster.job(waiting.job_id)["JobState"] == "PENDING"
    paced.finish()
    waiting.wait("CANCELLED")
    oracles.no_step_redone(paced.run)
    oracles.requeues(paced.run, 1)
    assert_went_on(paced.run, row.reference(), ["preemption", "completed"])


def test_row_05_preemption_that_cancels_at_once_goes_on_as_the_successor(row: Row) -> None:
    paced, waiting = begin_where_preemption_cancels(row, grace_s=0)
    harm_slurm.begin_preemption(paced.run)
    paced.run.wait("PREEMPTED")
    paced.hurry()
    waiting.wait()
    oracles.no_step_redone(paced.run)  # the save fits KillWait
    assert_went_on(paced.run, row.reference(), ["preemption", "completed"])


def test_row_05_preemption_that_cancels_without_a_successor_keeps_the_checkpoint_for_resume(
    row: Row,
) -> None:
    row.kit.cluster.restart(extra_conf=PATIENT, preemption=Preemption("CANCEL", 0))
    qos = QOS_OF_PARTITION["batch"]
    # On the site a plugin of slurmctld gives the job its QOS if it has none.
    words = ("slurm.restart=requeue", *[f"slurm.qos={qos}"] * IS_SITE)
    said = row.kit.jobs("submit", PACED, *words, "--dry-run").stderr
    where = f"QOS {qos}" if IS_SITE else "partition batch"
    assert f"note: slurm.restart: {where} cancels what it preempts" in said
    paced = row.begin("slurm.restart=requeue")
    harm_slurm.begin_preemption(paced.run)
    paced.run.wait("PREEMPTED")
    paced.run.wait_for(paced.run.result, "a result")
    assert not paced.run.dir.successor.exists()
    assert "preemption" in paced.run.result()["reason"]
    oracles.causes(paced.run, ["cancelled"])
    paced.hurry()
    row.kit.resume(paced.run).wait()
    oracles.no_step_redone(paced.run)
    assert_went_on(paced.run, row.reference(), ["cancelled", "completed"])


def test_row_05_cancelled_in_the_end_of_a_cancelling_preemption_stays_cancelled(row: Row) -> None:
    """A job that is ending looks the same in both cases; the successor waits for its end state."""
    paced, waiting = begin_where_preemption_cancels(row, grace_s=30)
    harm_processes.stop_rank(paced.run, 0)  # so that the grace lasts
    harm_slurm.begin_preemption(paced.run)

    def is_preempted() -> bool:
        return row.kit.cluster.job(paced.run.job_id)["PreemptTime"] not in ("None", "Unknown")

    paced.run.wait_for(is_preempted, "the preemption", 60)
    harm_slurm.scancel(paced.run)
    paced.run.wait("CANCELLED")
    waiting.wait({"CANCELLED", "FAILED"})
    paced.run.wait_for(lambda: not row.kit.cluster.job_ids(), "no job")
    assert paced.run.result()["status"] == "cancelled"
    (cause,) = (attempt["cause"] for attempt in paced.run.attempts())
    assert cause in ("preemption", "lost"), cause  # lost: killed before it recorded
    oracles.nothing_left(paced.run)


@pytest.mark.parametrize("options", [(), ("--no-requeue",)], ids=["asks", "no-requeue"])
def test_row_13_job_requeue_0_is_overridden_and_no_requeue_has_a_successor(
    row: Row, options: tuple[str, ...]
) -> None:
    row.kit.cluster.restart(extra_conf="JobRequeue=0")
    paced = row.begin_by_sbatch(*options)
    run = paced.run
    if not options:
        harm_slurm.preempt(run)
        paced.finish()
        oracles.requeues(run, 1)
        decision = "wait" if harm_slurm.LEFT_TO_SLURM else "requeue"
    else:
        waiting = successor(run)
        harm_slurm.begin_preemption(run)
        run.wait({"FAILED", "PREEMPTED", "CANCELLED"})
        paced.hurry()
        waiting.wait()
        assert row.kit.cluster.job(waiting.job_id)["Requeue"] == "0"
        decision = "successor"
    assert [a["decision"] for a in run.attempts()] == [decision, "done"]
    oracles.no_step_redone(run)
    assert_went_on(run, row.reference(), ["preemption", "completed"])


def test_row_15_killed_batch_shell_goes_on_by_itself_with_a_guard(row: Row) -> None:
    paced = row.begin(GUARD, "checkpoint.every_steps=4")
    paced.run.wait_for_step(6)
    waiting = successor(paced.run)
    harm_processes.kill(paced.run, "batch")
    paced.run.wait("FAILED")
    paced.hurry()
    waiting.wait()
    oracles.at_most_one_interval(paced.run)
    assert_went_on(paced.run, row.reference(), ["lost", "completed"])


def test_row_11_successor_of_a_cancelled_job_ends_without_training(row: Row) -> None:
    """A job that is cancelled in the queue has no process that could record the cancel."""
    paced = row.begin(GUARD)
    waiting = successor(paced.run)
    harm_slurm.preempt(paced.run)
    harm_slurm.scancel(paced.run)
    paced.run.wait("CANCELLED")
    waiting.wait("FAILED")
    assert paced.run.result()["status"] == "cancelled"
    oracles.closed(paced.run, ["preemption"])
    log = paced.run.dir.job_log.read_text()
    assert (
        f"job {waiting.job_id} does not continue the run: job {paced.run.job_id} was cancelled"
        in log
    )


@pytest.mark.usefixtures("patient_site")
def test_row_11_cancelled_job_takes_its_successor_with_it(row: Row) -> None:
    paced = row.begin(GUARD)
    waiting = successor(paced.run)
    harm_slurm.scancel(paced.run)
    paced.run.wait("CANCELLED")
    waiting.wait("CANCELLED")
    assert not paced.run.dir.successor.exists()
    oracles.closed(paced.run, ["cancelled"])


def test_row_02_without_any_slurm_command_in_the_wrap(row: Row, tmp_path: Path) -> None:
    wrap = tmp_path / "contained"
    wrap.write_text(WRAP)
    wrap.chmod(0o755)
    prefix = f'launch.command_prefix=["{wrap}"]'
    paced = row.begin(prefix, f"launch.python={sys.executable}")
    harm_slurm.preempt(paced.run)
    paced.finish()
    oracles.no_step_redone(paced.run)
    assert_went_on(paced.run, row.reference(), ["preemption", "completed"])
