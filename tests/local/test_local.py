"""Local runs with the processes of a cluster: node agents, torchrun, ranks."""

import signal

import pytest

from slurm_job_kit.jobs.base.files import read_json, read_jsonl
from slurm_job_kit.jobs.contract.records.timeline import read_events
from slurm_job_kit.jobs.contract.rundir import RunDir
from tests import bitwise
from tests.core.run_files import read_progress_steps
from tests.core.waiting import wait_for
from tests.local.local_kit import Kit

SPEC = """
name: tiny
slurm: {nodes: %d}
launch: {nproc_per_node: %d}
train:
  model: tests.parts:perceptron
  dataset: tests.parts:table
  epochs: %d
  micro_batch_size: 8
  eval_every_epochs: 8
  schedule: cosine
checkpoint: {every_epochs: 8}
"""
FOR_EVER = 10**6


def submit(kit, nodes=1, nproc=1, epochs=1):
    """A submit that runs; without the check of model and data, to save its time."""
    config = kit.root.with_name("tiny.yaml")
    config.write_text(SPEC % (nodes, nproc, epochs))
    return kit.start("submit", config, "--cluster", "local", "--no-check")


def started(kit, *path):
    """The run directory, as soon as `path` exists in it."""
    wait_for((kit.root / "tiny/latest" / "/".join(path)).exists, f"no {path}")
    return RunDir((kit.root / "tiny/latest").resolve())


def training(kit):
    """The run directory, as soon as some steps are done."""
    run = started(kit, "progress.json")
    wait_for(lambda: (read_progress_steps(run.progress)[0] or 0) > 3, "no step is done")
    return run


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    kit = Kit(tmp_path_factory.mktemp("undisturbed") / "runs")
    status, stdout, stderr = kit.end(submit(kit, nodes=2, nproc=2, epochs=24))
    assert status == 0, stderr
    assert kit.kill() == []
    return RunDir((kit.root / "tiny/latest").resolve()), stdout


def test_a_run_completes_and_says_how_well(undisturbed):
    run, stdout = undisturbed
    result = read_json(run.result)
    assert (result["status"], result["attempts"], result["steps_redone"]) == ("completed", 1, 0)
    assert result.get("exactness", "bitwise") == "bitwise"  # of the plugin describe
    accuracy = result["metrics"]["eval_accuracy"]
    assert accuracy > 0.9
    of_end, of_run = stdout.splitlines()
    assert of_end.startswith(
        f"held-out accuracy {accuracy:.2%} after {result['global_step']} steps in "
    )
    assert of_run == f"run directory {run.path}, next: make report RUN={run.run_id}"


def test_a_run_leaves_its_records(undisturbed):
    run, _ = undisturbed
    (record,) = read_jsonl(run.attempts)
    assert (record["first_step"], record["decision"]) == (1, "done")
    assert record["last_step"] == read_json(run.result)["global_step"]
    assert read_jsonl(run.metrics)
    events = [event["event"] for event in read_jsonl(run.timeline("attempt"))]
    assert events == ["open", "close"]
    assert not run.owner.exists()


def test_each_global_rank_has_its_log(undisturbed):
    run, _ = undisturbed
    for rank in range(4):
        assert f"rank {rank} of 4" in run.rank_log(rank).read_text()
        spawned = [event["event"] for event in read_jsonl(run.timeline(f"rank-{rank:05d}"))]
        assert {"spawn", "import", "first_step"} <= set(spawned)


def test_rank_0_alone_writes_its_evaluations_to_the_timeline(undisturbed):
    run, _ = undisturbed
    evaluated = [each["step"] for each in read_jsonl(run.metrics) if "eval_loss" in each]
    events = read_events(run.timeline("rank-00000"))
    assert [each.step for each in events if each.event == "evaluation"] == evaluated
    assert all(each.seconds for each in events if each.event == "evaluation")
    assert "evaluation" not in {each.event for each in read_events(run.timeline("rank-00001"))}


def test_ctrl_c_saves_and_resume_ends_with_the_bits_of_the_undisturbed_run(kit, undisturbed):
    """On one node instead of two, with as many ranks: the bits do not tell."""
    process = submit(kit, nodes=1, nproc=4, epochs=24)
    run = training(kit)
    process.send_signal(signal.SIGINT)
    status, _, stderr = kit.end(process)
    assert status == 130, stderr
    assert kit.processes() == []
    stopped = read_json(run.result)
    assert (stopped["status"], stopped["reason"]) == ("held", "stopped on request")
    assert (run.checkpoints / f"step-{stopped['global_step']:08d}").is_dir()

    at = stopped["global_step"]
    after = (
        f"stopped after step {at} of {read_json(run.progress)['total']}, saved; next: make resume"
    )
    assert stderr.splitlines()[-2:] == [
        "stopping after this step and saving (Ctrl-C again kills)",
        f"{after} RUN={run.run_id}",
    ]
    status, _, stderr = kit.run("resume", run.run_id)  # also where sbatch is on PATH
    assert status == 0, stderr
    assert stderr.startswith(f"continues from step {at} of ")
    result = read_json(run.result)
    assert (result["attempts"], result["steps_redone"]) == (2, 0)
    assert bitwise.differences(run, undisturbed[0]) == []


@pytest.mark.parametrize(
    ("nodes", "nproc", "moment"),
    [(2, 1, "attempt-1/plan.json"), (1, 2, "attempt-1/rank-00001.log")],
)
def test_ctrl_c_during_the_start_up_ends_all(kit, nodes, nproc, moment):
    process = submit(kit, nodes, nproc, epochs=FOR_EVER)
    started(kit, moment)
    process.send_signal(signal.SIGINT)
    status, _, stderr = kit.end(process)
    assert status == 130, stderr


@pytest.mark.slow
def test_a_killed_foreground_process_leaves_no_orphan(kit):
    process = submit(kit, nodes=2, epochs=FOR_EVER)
    training(kit)
    assert len(kit.processes()) > 6
    process.kill()
    process.communicate()
    wait_for(lambda: not kit.processes(), "orphans")


@pytest.mark.slow
def test_a_stop_is_passed_on_although_nobody_listens_any_more(kit):
    process = submit(kit, 1, 1, FOR_EVER)
    run = training(kit)
    process.stdout.close()
    process.stderr.close()
    for number in (signal.SIGHUP, signal.SIGHUP):  # a closing terminal sends it twice
        process.send_signal(number)
    wait_for(run.result.exists, "no result")
    process.wait(timeout=100)
    record = read_jsonl(run.attempts)[-1]
    assert record["evidence"]["outcome"] == "stopped"
    assert read_json(run.result)["status"] == "held"
