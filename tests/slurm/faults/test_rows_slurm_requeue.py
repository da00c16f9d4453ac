"""Requeues: by others, refused, ten in an epoch, before the first step (rows 12, 13, 32, 36)."""

import json
from functools import partial
from pathlib import Path

import pytest

from slurm_job_kit.jobs.contract.rundir import AttemptDir, RunDir

from ..kit import JOB_TIMEOUT_S, PACED, Kit, Run
from . import data, harm_slurm, oracles
from .rows import Row
from .scenario import Paced, start

RANKS = 3


@pytest.mark.usefixtures("patient_site")
def test_row_12_an_admin_requeues_twice(row: Row) -> None:
    paced = row.begin()
    harm_slurm.requeue(paced.run)
    harm_slurm.requeue(paced.run)
    harm_slurm.wait_for_restarts(paced.run, 1)
    paced.finish()
    oracles.went_on(paced.run, row.reference(), "requeued")


def test_row_13_requeue_refused(row: Row) -> None:
    # Without a successor, which `auto` would queue.
    paced = row.begin_by_sbatch("--no-requeue", override="slurm.restart=requeue")
    run = paced.run
    harm_slurm.begin_preemption(run)
    # Since 24.05 Slurm gives a job that ends in its grace this state, and no exit code.
    ended = ("PREEMPTED", "0:0") if harm_slurm.ENDS_PREEMPTED else ("FAILED", "1:0")
    assert run.wait(ended[0])["ExitCode"] == ended[1]
    record, result = run.attempts()[-1], run.result()
    assert record["checkpoint"] == f"step-{record['last_step']:08d}"
    assert result["status"] == "held" and "requeue" in result["reason"]
    log = (row.kit.runs_root / f"{run.job_id}.out").read_text()
    assert "NOT requeued" in log and "make resume" in log
    oracles.closed(run, ["preemption"])
    paced.hurry()
    row.kit.resume(run).wait()
    oracles.ended(run, row.reference(), ["preemption", "completed"])
    oracles.no_step_redone(run)


def test_row_32_ten_preemptions_in_one_epoch(row: Row, tmp_path: Path) -> None:
    micro_batch_size = 4  # 120 steps: a busy machine does many between a look and a preemption
    words = ("train.epochs=1", f"train.micro_batch_size={micro_batch_size}", data.RECORDED)
    folder, expected = tmp_path / "samples", tmp_path / "expected"
    folder.mkdir()
    expected.mkdir()
    paced = row.start(*words, f"launch.env.SAMPLES_FOLDER={folder}")
    paced.pace.write_text("1.0")
    for number in range(10):
        preempt_after_a_step(paced.run, number)
    paced.finish()
    whole = start(row.kit, *words, f"launch.env.SAMPLES_FOLDER={expected}")
    whole.finish()
    oracles.went_on(paced.run, whole.run, *["preemption"] * 10)
    seen = [data.batches(folder, rank) for rank in range(RANKS)]
    assert seen == [data.batches(expected, rank) for rank in range(RANKS)]
    samples = [index for batches in seen for batch in batches for index in batch]
    num_samples = paced.run.result()["global_step"] * micro_batch_size * RANKS
    assert len(samples) == len(set(samples)) == num_samples


def preempt_after_a_step(run: Run, number: int) -> None:
    """Preempt the attempt after `number` others, once it has done a step."""
    before = run.attempts()
    assert len(before) == number
    run.wait_for_step((before[-1]["last_step"] if before else 0) + 1)
    harm_slurm.preempt(run)


def have_agents(attempt: AttemptDir) -> bool:
    return all(attempt.agent(rank).exists() for rank in range(RANKS))


def test_row_36_start_up_outlasts_every_slot(row: Row, tmp_path: Path) -> None:
    (tmp_path / "start").touch()
    paced = row.start(f"launch.env.START_FILE={tmp_path}/start")
    run = paced.run
    for number in range(1, 6):
        attempt = run.dir.attempt(number)
        run.wait_for(partial(have_agents, attempt), f"the agents of attempt {number}")
        harm_slurm.begin_preemption(run)
        run.wait_for_attempts(number)
    (tmp_path / "start").unlink()
    paced.finish()
    oracles.ended(run, row.reference(), ["preemption"] * 5 + ["completed"])


def test_row_36_time_limit_shorter_than_the_start_up(row: Row, tmp_path: Path) -> None:
    (tmp_path / "start").touch()
    limit = ("slurm.time=00:01:00", "slurm.signal_lead_s=20")
    run = row.start(f"launch.env.START_FILE={tmp_path}/start", *limit).run
    run.wait("FAILED", 3 * JOB_TIMEOUT_S)  # five starts of up to a minute, and their requeues
    assert run.result()["status"] == "held"
    assert "5 attempts without a new checkpoint" in run.result()["reason"]
    oracles.closed(run, ["time_limit"] * 5)
    assert run.cluster.job_ids() == []


def test_an_array_task_is_requeued_alone(row: Row) -> None:
    """The bare id of an array would requeue every one of its tasks."""
    words = ("slurm.nodes=1", "launch.nproc_per_node=3")
    tasks = [freeze(row.kit, *words, f"train.seed={seed}") for seed in range(2)]
    points = row.kit.runs_root / "sweep" / "points"
    points.mkdir(parents=True)
    for number, task in enumerate(tasks):
        (points / str(number)).symlink_to(task.run.dir.path)
    # With NONE srun gives the agents the variables of the batch script, and not only Slurm's own.
    # The PATH of a log-in does not have the programs of another Slurm.
    export = f"--export={'ALL' if row.kit.cluster.site.prefix else 'NONE'}"
    options = ("--parsable", export, "--nodes=1", "--cpus-per-task=3", "--array=0-1", "--time=10")
    array = ("sbatch", *options, "--output=/dev/null", "slurm/ddp.sbatch", points.parent)
    job_id = row.kit.run(*array).stdout.strip()
    first, second = (Run(row.kit.cluster, f"{job_id}_{n}", tasks[n].run.dir) for n in range(2))
    row.record(first)
    first.wait_for_step(2)
    node = row.kit.cluster.job(first.job_id)["NodeList"]
    harm_slurm.begin_preemption(first, f"--nodelist={node}", "--nodes=1")
    harm_slurm.wait_for_restarts(first, 1)
    for task in tasks:
        task.hurry()
    first.wait()
    second.wait()
    oracles.requeues(first, 1)
    oracles.requeues(second, 0)
    oracles.causes(first, ["preemption", "completed"])
    oracles.causes(second, ["completed"])
    oracles.bitwise(first, row.reference(*words, "train.seed=0"))
    oracles.no_step_redone(first)


def freeze(kit: Kit, *words: str) -> Paced:
    """A run directory of the standard run without a job."""
    pace = kit.runs_root / f"pace-{words[-1]}"
    pace.parent.mkdir(parents=True, exist_ok=True)
    pace.touch()
    argv = ("freeze", "--json", PACED, *words, f"launch.env.PACE_FILE={pace}")
    run_dir = json.loads(kit.jobs(*argv).stdout)["run_dir"]
    return Paced(Run(kit.cluster, "", RunDir(Path(run_dir))), pace)
