"""Signals and kills hit single processes of a run, or all (rows 7, 9, 14, 15, 16)."""

import signal
from pathlib import Path

import pytest

from slurm_job_kit.jobs.plugins import PLUGINS

from . import harm_processes, harm_slurm, oracles
from .data import BY_SAMPLE
from .rows import Row
from .scenario import AT_ONCE, Paced
from .test_rows_slurm import on_every_proctrack

# With worker processes that read the data, which must not be left behind either.
READERS = (BY_SAMPLE, "launch.num_workers=1") if "samples" in PLUGINS else ()
# The first signal determines the cause.
AFTER_A_STOP = [["manual_stop", "completed"], ["time_limit", "completed"]]
OFTEN = "checkpoint.every_steps=3"


def start_with_readers(row: Row) -> Paced:
    """The standard run with readers, at a step that is not the newest checkpoint's."""
    paced = row.start(*READERS, OFTEN)
    paced.run.wait_for_step(4)
    roles = {*harm_processes.ROLES} - (set() if READERS[1:] else {"reader"})
    assert {p.role for p in harm_processes.tree(paced.run)} >= roles
    return paced


@pytest.mark.parametrize("stop", [signal.SIGUSR1, signal.SIGTERM], ids=lambda stop: stop.name)
def test_row_07_only_one_rank_is_warned(row: Row, stop: signal.Signals) -> None:
    paced = row.begin()
    harm_processes.warn_rank(paced.run, 1, stop)
    paced.finish()
    oracles.stopped_together(paced.run, 1)
    oracles.went_on(paced.run, row.reference(), "manual_stop")


@on_every_proctrack
@pytest.mark.usefixtures("proctrack")
def test_row_09_storm_of_signals_to_the_whole_tree(row: Row) -> None:
    paced = start_with_readers(row)
    assert harm_processes.storm(paced.run) > 50
    paced.finish()
    oracles.bitwise(paced.run, row.reference(*READERS))
    # At SIGTERM srun kills its step: steps that could not be saved are lost.
    oracles.at_most_one_interval(paced.run)
    assert [a["cause"] for a in paced.run.attempts()] in AFTER_A_STOP
    oracles.requeues(paced.run, 1)
    oracles.nothing_left(paced.run)


@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.fault)])
def test_row_14_sigkill_of_a_rank_is_retried_in_the_allocation(row: Row, number: int) -> None:
    paced = row.begin(OFTEN, step=4)
    harm_processes.send([harm_processes.rank(paced.run, number)], signal.SIGKILL)
    paced.finish()
    oracles.retried(paced.run, row.reference(), "crash")
    assert f"rank {number} on n" in paced.run.attempts()[0]["evidence"]["error"]


# Slurm 22.05 may count a step that has ended for ever; here another one gets the processors first.
@pytest.mark.fault
@pytest.mark.skipif(harm_slurm.ENDS_PREEMPTED, reason="with a later Slurm the retry is the first")
def test_row_14_a_retry_that_gets_no_step_of_slurm_is_requeued(row: Row) -> None:
    paced = row.begin(OFTEN, step=4)
    step = ("srun", f"--jobid={paced.run.job_id}", "--nodes=3", "--ntasks=3", "sleep", "600")
    with row.kit.cluster.running_on("n1", *step):
        paced.run.wait_for_step(10)  # it waits for the end of the run's step by then
        harm_processes.send([harm_processes.rank(paced.run, 1)], signal.SIGKILL)
        paced.finish()
    oracles.ended(paced.run, row.reference(), ["crash", "node", "completed"])


@on_every_proctrack
@pytest.mark.usefixtures("proctrack")
@pytest.mark.parametrize("role", ["torchrun", *harm_processes.FORK_SERVER, "agent", "srun"])
def test_row_15_sigkill_of(row: Row, role: str) -> None:
    paced = start_with_readers(row)
    first = [p for p in harm_processes.tree(paced.run) if p.role != "batch"]
    harm_processes.kill(paced.run, role)
    paced.run.wait_for(lambda: all(map(harm_processes.is_gone, first)), f"the end of {first}", 120)
    paced.finish()
    oracles.retried(paced.run, row.reference(*READERS), "crash")


@on_every_proctrack
@pytest.mark.usefixtures("proctrack")
def test_row_15_sigkill_of_the_batch_process_is_recorded_as_lost(row: Row) -> None:
    paced = start_with_readers(row)
    harm_processes.kill(paced.run, "batch")
    # The second one: Slurm 26.05.
    reasons = ("JobLaunchFailure", "RaisedSignal:9(Killed)")
    assert paced.run.wait("FAILED")["Reason"] in reasons
    oracles.nothing_left(paced.run)
    paced.hurry()
    row.kit.resume(paced.run).wait()
    oracles.ended(paced.run, row.reference(*READERS), ["lost", "completed"])
    oracles.at_most_one_interval(paced.run)


def test_row_16_sigkill_in_a_save(row: Row, disk: Path) -> None:
    paced = row.start(OFTEN, f"launch.env.DISK_FILE={disk}")
    run = paced.run
    # The whole save, so that the disk does not block while the first save's pointer is written.
    run.wait_for_events("save")
    disk.touch()
    run.wait_for(lambda: list(run.dir.checkpoints.glob(".tmp-step-*")), "a save", 60)
    harm_processes.send([harm_processes.rank(run, 0)], signal.SIGKILL)
    disk.unlink()
    paced.finish()
    oracles.retried(run, row.reference(), "crash")
    first, second = run.attempts()
    assert second["first_step"] == int(first["checkpoint"].removeprefix("step-")) + 1


def test_row_38_the_slurmstepd_of_one_node_dies(row: Row) -> None:
    """The training completes, and the kit ends the job although srun would wait for ever."""
    paced = row.begin()
    harm_processes.kill_slurmstepd(paced.run)
    paced.finish()
    oracles.ended(paced.run, row.reference(), ["completed"])
    done = max(event["t"] for event in paced.run.events("completed"))
    assert paced.run.attempts()[0]["times"]["stop"] - done < 120


# On all nodes of the cluster, so that no other one can take the place of the node that crashes.
RAISING = ("slurm.nodes=4", "launch.env.CRASH_RANK='1'")


def test_row_24_crash_that_repeats_at_the_same_step_is_held(row: Row) -> None:
    run = row.start(*RAISING, "launch.max_crashes=3", pace=AT_ONCE).run
    run.wait("FAILED")
    oracles.closed(run, ["crash"] * 3, 0)
    assert [a["decision"] for a in run.attempts()] == ["retry", "retry", "hold"]
    log = run.dir.job_log.read_text()
    assert log.count("first failure: rank 1 on n") == 3
    result = run.result()
    assert result["status"] == "held"
    assert "3 crashes within 24 hours without a new checkpoint: rank 1 on n" in result["reason"]
    assert "out of cheese" in result["reason"]


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("RequeueExit=1", ()),
        ("RequeueExitHold=1", ()),
        pytest.param(
            harm_slurm.WITH_EXPEDITED, (harm_slurm.EXPEDITED,), marks=harm_slurm.needs_expedited
        ),
    ],
    ids=["RequeueExit", "RequeueExitHold", "expedited"],
)
def test_row_24_a_held_run_is_not_started_again_because_of_its_exit_code(
    row: Row, setting: str, words: tuple[str, ...]
) -> None:
    """Slurm would start the job again, or leave it in the queue as REQUEUE_HOLD."""
    row.kit.cluster.restart(extra_conf=setting)
    run = row.start(*RAISING, "launch.max_crashes=2", *words, pace=AT_ONCE).run
    assert run.wait("FAILED")["ExitCode"] == ("1:0" if words else "3:0")
    assert run.result()["status"] == "held"
    oracles.closed(run, ["crash"] * 2, 0)
    assert run.cluster.job_ids() == []
