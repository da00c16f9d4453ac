"""Other libraries' trainings under the installed kit: stopped, damaged, killed, and exact."""

import os
import signal
import subprocess

import pytest

from slurm_job_kit.jobs.base.files import read_json, read_jsonl
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.trainer.plugins.integrations import whole
from tests.core.waiting import wait_for
from tests.installed import install
from tests.local.conftest import kit as kit
from tests.plugins.integrations import other_training
from tests.plugins.integrations.other_training import check_against_undisturbed, pid_of, samples


@pytest.fixture(scope="module")
def kit_command(tmp_path_factory):
    return install(tmp_path_factory.mktemp("installed"))


@pytest.fixture
def wait_for_steps(kit):
    """`wait_for_steps(attempt, number)`: rank 1 has begun so many steps; returns the run."""

    def wait(attempt, number):
        newest = kit.root / "other/latest"
        what = f"{number} steps of attempt {attempt} in {newest}"
        wait_for(lambda: len(samples(newest / "work", attempt, rank=1)) >= number, what)
        return RunDir(newest.resolve())

    return wait


@pytest.mark.slow
@pytest.mark.parametrize("library", other_training.PACKAGES)
def test_a_stopped_damaged_and_killed_training_ends_as_an_undisturbed_one(
    kit, kit_command, wait_for_steps, tmp_path, library
):
    other_training.skip_without(library)
    kit.command = [kit_command]
    pace = tmp_path / "pace"
    pace.write_text("0.1")
    kit.repository = other_training.make_repository(tmp_path / "mine", library, 2, pace)
    process = kit.start("submit", "other.yaml", "--cluster", "local")
    run = wait_for_steps(1, 14)  # in the second epoch
    process.send_signal(signal.SIGINT)
    status, _, stderr = kit.end(process, 60)
    assert status == 130, stderr
    marker = read_json(run.attempt(1).outcome)
    assert marker["status"] == "stopped" and 14 <= marker["global_step"] < 36
    assert isinstance(read_json(run.progress)["metrics"]["loss"], float)

    newest, older = whole.names(run.checkpoints)
    assert newest == f"checkpoint-{marker['global_step']}"
    next((run.checkpoints / newest).glob("*.*")).write_bytes(b"half")
    process = kit.start("resume", run.run_id, "--cluster", "local")
    wait_for_steps(2, 7)  # it has saved meanwhile: each fifth step
    os.kill(pid_of(run, 2, rank=1), signal.SIGKILL)
    status, _, stderr = kit.end(process)
    assert status == 0, stderr
    first, second, third = read_jsonl(run.attempts)
    causes = [each["cause"] for each in (first, second, third)]
    assert causes == ["interrupted", "crash", "completed"]
    assert f"now quarantined-{newest}" in run.attempt(2).rank_log(0).read_text()
    assert second["first_step"] == int(older.partition("-")[2]) + 1
    assert third["first_step"] > second["first_step"]
    assert read_json(run.result)["global_step"] == 36
    python = kit_command.with_name("python")
    check_against_undisturbed(run, python, library, tmp_path / "plain", 2)


@pytest.fixture
def end(kit_command, tmp_path, monkeypatch):
    """Runs a script on one rank, which must exit with 0; returns (marker, report)."""
    run = RunDir(tmp_path)
    run.attempt(1).path.mkdir()
    (tmp_path / "timeline").mkdir()
    env = os.environ | {"KIT_STOP_FILE": str(run.attempt(1).stop_requested)}
    env = {name: text for name, text in env.items() if name != "PYTHONPATH"}

    def run_script(library, name, *words):
        other_training.skip_without(library)
        python = kit_command.with_name("python")
        argv = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
        argv += [other_training.SCRIPTS / name, *words]
        done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return read_json(run.attempt(1).outcome), read_json(run.progress)

    return run_script


@pytest.mark.slow
@pytest.mark.parametrize("how", ["best", "refused"])
def test_a_trainer_that_overwrites_the_wish_to_save_saves_in_the_step_of_the_warning(
    end, how, tmp_path
):
    marker, progress = end("transformers", "refused_transformers.py", how)
    assert marker == {"status": "stopped", "global_step": 4}
    assert whole.damage(tmp_path / "out/checkpoint-4") is None
    assert progress["step"] == 4 and progress["metrics"]["eval_quality"] == 1
    assert progress["metrics"].keys().isdisjoint(("phase", "lrs", "nothing", "step"))
    marker, _ = end("transformers", "refused_transformers.py", how)
    assert marker == {"status": "completed", "global_step": 9}
