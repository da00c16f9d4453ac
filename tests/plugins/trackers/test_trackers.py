"""Trackers, as real packages: one run over all attempts, no value twice, no error ends a training.

MLflow is tried where it is installed.
"""

import contextlib
import re
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from slurm_job_kit.jobs import hooks as core
from slurm_job_kit.jobs.config.load import SpecError, load
from slurm_job_kit.jobs.contract.records.training import Result
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.contract.spec import Launch, Log, Spec
from slurm_job_kit.jobs.runs import fact_reader
from slurm_job_kit.trainer.errors import UserError
from slurm_job_kit.trainer.plugins.trackers import hooks
from slurm_job_kit.trainer.plugins.trackers.built_in import Run
from slurm_job_kit.trainer.plugins.trackers.hooks import Trackers
from tests.core import run_files
from tests.core.run_files import REPOSITORY

needs_tensorboard = pytest.mark.skipif(not find_spec("tensorboard"), reason="no tensorboard here")
needs_wandb = pytest.mark.skipif(not find_spec("wandb"), reason="no wandb here")
needs_mlflow = pytest.mark.skipif(not find_spec("mlflow"), reason="no mlflow here")
OWN = "tests.plugins.trackers.test_trackers:Recorder"


class Recorder:
    """A tracker that writes each call into a file; it fails, or hangs, in the method `bad`."""

    def __init__(self, to, bad="", error=""):
        self.to, self.bad, self.error = Path(to), bad, error

    def note(self, method, *given):
        if self.bad == method:
            while (self.to / "hang").exists():
                time.sleep(0.01)
            raise {"ValueError": ValueError, "SystemExit": SystemExit}[self.error]("bad\nmore")
        with (self.to / "calls").open("a") as file:
            print(method, *given, file=file)

    def start(self, run, step):
        self.note("start", run.dir.path.name, step)

    def log(self, step, values):
        self.note("log", step, values)

    def finish(self, state):
        self.note("finish", state)


def run_in(path, *names, **args):
    log = Log(trackers=[*names], tracker_args=args)
    return Run(RunDir(path), Spec(log=log, launch=Launch(env={"KEY": "a-secret"})))


def start(run, step):
    """The trackers of rank 0 that have started at a step."""
    trackers = Trackers()
    trackers.start(run, step)
    return trackers


def own(path, **args):
    return start(run_in(path, OWN, **{OWN: {"to": str(path)} | args}), 5)


def calls(path):
    return (path / "calls").read_text().splitlines() if (path / "calls").exists() else []


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("wandb", r".* has no wandb \(extra wandb of "),
        ("no.module:Own", "no.*: No module named 'no'"),
    ],
)
def test_a_tracker_that_is_not_installed_is_a_user_error(tmp_path, monkeypatch, name, what):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=f"^log.trackers: {what}"):
        start(run_in(tmp_path, name), 1)


def test_a_package_that_cannot_be_imported_is_only_a_warning(tmp_path, monkeypatch, capsys):
    tmp_path.joinpath("wandb.py").write_text("raise TypeError('descriptors of another protobuf')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    start(run_in(tmp_path, "wandb"), 1)
    assert "not affected: TypeError: descriptors of another protobuf" in capsys.readouterr().out


def test_a_tracker_of_one_s_own_gets_its_step_all_values_in_order_and_the_end(tmp_path):
    trackers = own(tmp_path)
    for step in range(5, 100):
        trackers.reported(step, {"loss": step / 2})
    trackers.finish("stopped")
    logged = [f"log {step} {{'loss': {step / 2}}}" for step in range(5, 100)]
    assert calls(tmp_path) == [f"start {tmp_path.name} 5", *logged, "finish stopped"]


@pytest.mark.parametrize("error", ["ValueError", "SystemExit"])
@pytest.mark.parametrize("method", ["start", "log", "finish"])
def test_a_tracker_that_fails_causes_one_warning_and_is_not_called_again(
    tmp_path, capsys, method, error
):
    trackers = own(tmp_path, bad=method, error=error)
    for step in (5, 6):
        trackers.reported(step, {})
    trackers.finish("finished")
    begun = {"start": [], "log": ["start"], "finish": ["start", "log", "log"]}[method]
    assert [each.split()[0] for each in calls(tmp_path)] == begun
    what = f"log.trackers: {OWN} is off from here on, the run is not affected"
    assert capsys.readouterr().out == f"warning: {what}: {error}: bad\n"


@pytest.mark.parametrize("method", ["start", "log", "finish"])
def test_a_tracker_that_hangs_holds_up_neither_the_steps_nor_the_end(
    tmp_path, capsys, monkeypatch, method
):
    monkeypatch.setattr(hooks, "MAX_WAITING", 3)
    monkeypatch.setattr(hooks, "CLOSE_LIMIT_S", 0.05)
    (tmp_path / "hang").touch()
    trackers = own(tmp_path, bad=method, error="ValueError")
    for step in range(10 if method != "finish" else 1):
        trackers.reported(step, {})
    trackers.finish("stopped")
    out = capsys.readouterr().out
    (tmp_path / "hang").unlink()
    assert out.count("is off") == 1
    assert ("did not finish" if method == "finish" else "3 lines behind") in out


@pytest.mark.parametrize(
    ("status", "cause", "sent", "state"),
    [
        ("cancelled", "cancelled", False, "killed"),
        ("held", "crash", False, "failed"),
        ("held", "interrupted", False, "killed"),
        ("completed", "completed", False, "finished"),
        ("completed", "completed", True, None),
    ],
)
def test_a_run_that_ends_without_its_rank_0_gets_its_end_state(
    tmp_path, run, fake_slurm, status, cause, sent, state
):
    """The tracker starts after the last step: it forgets none."""
    run_files.make_code(tmp_path, run)
    run.kit.unlink()
    run.kit.symlink_to(REPOSITORY)
    args = {OWN: {"to": str(run.path)}}
    run.spec.write_text(Spec(log=Log(trackers=[OWN], tracker_args=args)).to_json())
    run.setup.write_text(f"export PYTHONPATH={REPOSITORY}:$PYTHONPATH\n")
    run_files.opened(run)
    run_files.recorded(run, cause=cause, decision="hold")
    run_files.write_json(run.progress, {"step": 9})
    if sent:
        run.timeline("rank-00000").write_text('{"t": 1.0, "event": "tracked", "attempt": 1}\n')
    core.end(run, replace(fact_reader.read_newest(run), result=Result(status)), None)
    expected = [f"start {run.run_id} 10", f"finish {state}"]
    assert calls(run.path) == (expected if state else [])


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("log.trackers=[comet]", 'log.trackers: there is no tracker "comet"\n  hint: known: tens'),
        ("log.tracker_args={wandB: {}}", 'log.tracker_args: there is no tracker "wandB"\n  hint: '),
    ],
)
def test_a_key_that_cannot_work_is_refused_with_what_to_write(tmp_path, override, problem):
    spec = tmp_path / "a.yaml"
    spec.write_text("log: {trackers: [mlflow]}\n")
    with pytest.raises(SpecError) as caught:
        load(spec, [override])
    assert problem in str(caught.value)


def rows_over_a_kill(path, name, state="stopped", **args):
    """Report the steps 1 to 6, then 4 to 8 as after a kill, with an evaluation at every third."""
    for first, last, then in ((1, 6, "stopped"), (4, 8, state)):
        trackers = start(run_in(path, name, **args), first)
        for step in range(first, last + 1):
            trackers.reported(step, {"train_loss": step + 0.5})
            if step % 3 == 0:
                trackers.reported(step, {"eval_loss": step + 0.25})
        trackers.finish(then)


LOSSES = [(step, step + 0.5) for step in range(1, 9)]


@needs_tensorboard
def test_tensorboard_shows_each_step_once_after_a_kill(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    rows_over_a_kill(tmp_path, "tensorboard")
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("train_loss")] == LOSSES
    assert len(events.Scalars("eval_loss")) == 2


def test_the_tracker_of_the_docs_has_each_row_once_after_a_kill(tmp_path, monkeypatch):
    (text,) = re.findall(
        "```python\n(.*?)```", (REPOSITORY / "docs/care.md").read_text(), re.DOTALL
    )
    (tmp_path / "my_module.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    rows_over_a_kill(tmp_path, "my_module:Tracker")
    (database,) = tmp_path.glob("*.db")
    with contextlib.closing(sqlite3.connect(database)) as rows:
        assert [*rows.execute("SELECT step, value FROM rows WHERE name = 'train_loss'")] == LOSSES


@pytest.mark.slow
@needs_mlflow
@pytest.mark.parametrize("state", ["finished", "failed", "killed"])
def test_mlflow_has_one_run_without_a_row_twice_and_its_end_state(tmp_path, state):
    from mlflow import MlflowClient

    rows_over_a_kill(tmp_path, "mlflow", state, mlflow={"experiment": "digits"})
    client = MlflowClient(str(tmp_path / "mlruns"))
    (experiment,) = client.search_experiments(filter_string="name = 'digits'")
    (run,) = client.search_runs([experiment.experiment_id])
    rows = client.get_metric_history(run.info.run_id, "train_loss")
    assert [(each.step, each.value) for each in rows] == LOSSES
    evaluated = client.get_metric_history(run.info.run_id, "eval_loss")
    assert [each.step for each in evaluated] == [3, 6]
    assert (run.info.status, run.info.run_name) == (state.upper(), tmp_path.name)
    assert run.data.params["lr"] and "a-secret" not in str(run.to_dictionary())


def python(code, *arguments):
    """Start a Python process, because the packages write output and start processes."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


WANDB = """
import socket, sys, time
def print_look_ups(event, args):
    looks_up = event == "socket.getaddrinfo"
    if looks_up or event == "socket.connect" and args[0].family != socket.AF_UNIX:
        print(event, args, flush=True)
sys.addaudithook(print_look_ups)
from tests.plugins.trackers.test_trackers import Path, run_in, start
path, first, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
trackers = start(run_in(path, "wandb", wandb={"mode": "offline", "project": "digits"}), first)
for step in range(first, last + 1):
    trackers.reported(step, {"train_loss": step + 0.5})
while b"%.1f" % (last + 0.5) not in b"".join(x.read_bytes() for x in path.glob("wandb/*/*.wandb")):
    time.sleep(0.05)
print("logged", flush=True)
if sys.argv[4] == "killed":
    sys.stdin.read()
trackers.finish("finished")
"""


@pytest.mark.slow
@needs_wandb
def test_wandb_offline_goes_on_with_the_same_run_after_a_kill_without_a_network(
    tmp_path, monkeypatch
):
    for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    run_dir = tmp_path / "20260101-000000-abcd"
    run_dir.mkdir()
    killed = python(WANDB, run_dir, 1, 3, "killed")
    assert [killed.stdout.readline() for _ in range(2)][1] == "logged\n"
    killed.kill()
    killed.communicate(timeout=30)
    resumed = python(WANDB, run_dir, 3, 5, "resumed")
    out, err = resumed.communicate(timeout=60)
    assert resumed.returncode == 0 and err == ""
    words = f"wandb: upload it with: wandb sync {run_dir}/wandb/offline-run-*\nlogged\n"
    assert out == words  # and no network access
    attempts = sorted(run_dir.glob("wandb/offline-run-*"))
    assert len(attempts) == 2
    assert all(path.name.endswith(f"-{run_dir.name}") for path in attempts)
    assert b"digits" in record(attempts[0]) and b"5.5" in record(attempts[1])
    assert b"3.5" not in record(attempts[1])  # the step that is done again
    files = [path for path in run_dir.rglob("*") if path.is_file()]
    assert not [path for path in files if b"a-secret" in path.read_bytes()]


def record(path):
    """The bytes of an attempt's `.wandb` file, where values stand as plain text."""
    return b"".join(file.read_bytes() for file in path.glob("*.wandb"))
