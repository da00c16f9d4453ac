"""TensorBoard and Weights & Biases, as real packages: no value twice, no error ends a training."""

import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.contract.spec import Launch, Log, Spec
from slurm_job_kit.trainer.errors import UserError
from slurm_job_kit.trainer.plugins.trackers import hooks
from slurm_job_kit.trainer.plugins.trackers.hooks import Tracker
from slurm_job_kit.trainer.process.run_handle import RunHandle
from slurm_job_kit.trainer.process.watcher import Pulse
from tests.core.waiting import wait_for

needs_tensorboard = pytest.mark.skipif(not find_spec("tensorboard"), reason="no tensorboard here")
needs_wandb = pytest.mark.skipif(not find_spec("wandb"), reason="no wandb here")
REPOSITORY = Path(__file__).resolve().parents[3]


def run_in(path, **log):
    return RunHandle(RunDir(path), Spec(log=Log(**log), launch=Launch(env={"KEY": "a-secret"})), 1)


def start(run, first_step):
    """The trackers of rank 0 that have started."""
    trackers: Any = hooks.callbacks(Pulse())
    for tracker in trackers:
        tracker.start(run, first_step)
    return [tracker for tracker in trackers if tracker.is_on]


class Recorder(Tracker):
    """A tracker that keeps its values; it waits for `may_go_on`, if given, before each."""

    off, package, module = "log.every_steps=0", "", "sys"

    def __init__(self, path, name="Recorder", may_go_on=None):
        super().__init__()
        self.name, self.seen, self.may_go_on = name, [], may_go_on
        self.is_closed = threading.Event()
        self.start(run_in(path), 1)

    def _open(self, module, run, first_step):
        return self.keep, self.is_closed.set

    def keep(self, step, values):
        if values.get("bad"):
            raise ValueError("no such value")
        if self.may_go_on:
            self.may_go_on.wait(10)
        self.seen.append((step, values))


def test_a_tracker_that_the_spec_does_not_request_is_not_imported(tmp_path, monkeypatch):
    for name in ("tensorboard", "torch.utils.tensorboard", "wandb"):
        monkeypatch.setitem(sys.modules, name, None)
    assert start(run_in(tmp_path), first_step=1) == []


@pytest.mark.parametrize(
    ("package", "value", "module"),
    [("tensorboard", True, "torch.utils.tensorboard"), ("wandb", "offline", "wandb")],
)
def test_a_missing_package_is_a_user_error(tmp_path, monkeypatch, package, value, module):
    monkeypatch.setitem(sys.modules, module, None)
    words = rf"^log.{package} needs .* {package} \(an extra .* pip install {package}, or set"
    with pytest.raises(UserError, match=words):
        start(run_in(tmp_path, **{package: value}), first_step=1)


def test_a_package_that_cannot_be_imported_is_only_a_warning(tmp_path, monkeypatch, capsys):
    tmp_path.joinpath("wandb.py").write_text("raise TypeError('descriptors of another protobuf')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    assert start(run_in(tmp_path, wandb="online"), first_step=1) == []
    assert "continues without it: descriptors of another protobuf" in capsys.readouterr().out


def test_a_tracker_gets_all_values_in_order_before_it_is_closed(tmp_path):
    recorder = Recorder(tmp_path)
    for step in range(100):
        recorder.reported(step, {"loss": step / 2})
    recorder.end()
    assert recorder.seen == [(step, {"loss": step / 2}) for step in range(100)]
    assert recorder.is_closed.is_set()


def test_a_tracker_that_fails_causes_one_warning_and_gets_no_more_values(tmp_path, capsys):
    recorder = Recorder(tmp_path)
    recorder.reported(1, {"bad": 1.0})
    for thread in threading.enumerate():
        if thread.name == "Recorder":
            thread.join(5)
    for step in range(2, 12):
        recorder.reported(step, {})
    recorder.end()
    assert recorder.seen == []
    assert capsys.readouterr().out == (
        "warning: Recorder is off from here on, the training continues without it: no such value\n"
    )


def test_a_tracker_that_hangs_holds_up_neither_the_steps_nor_the_end(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(hooks, "MAX_WAITING", 3)
    monkeypatch.setattr(hooks, "CLOSE_LIMIT_S", 0.05)
    stuck = threading.Event()
    lagging, ending = (Recorder(tmp_path, name, stuck) for name in ("Lagging", "Ending"))
    started = time.monotonic()
    ending.reported(1, {})
    for step in range(10):
        lagging.reported(step, {})
    lagging.end()
    ending.end()
    assert time.monotonic() - started < 9  # the recorder hangs for 10 s
    stuck.set()
    out = capsys.readouterr().out
    assert out.count("Lagging is off") == 1 and "3 lines behind" in out
    assert out.count("Ending is off") == 1 and "did not finish" in out


@needs_tensorboard
def test_tensorboard_shows_each_step_once_after_a_kill(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for attempt, first_step in enumerate((1, 4), start=1):  # killed after 6, saved at 3
        (tracker,) = start(run_in(tmp_path, tensorboard=True), first_step)
        for step in range(first_step, 7):
            tracker.reported(step, {"train_loss": step + 0.5, "lr": 0.1 * attempt})
        tracker.end()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    losses = [(event.step, event.value) for event in events.Scalars("train_loss")]
    assert losses == [(step, step + 0.5) for step in range(1, 7)]
    assert len(events.Scalars("lr")) == 6


FULL_DISK = """
import resource, sys
from tests.plugins.trackers.test_trackers import Path, run_in, start
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
(tracker,) = start(run_in(Path(sys.argv[1]), tensorboard=True), first_step=1)
for step in range(200):
    tracker.reported(step, {"loss": 0.5})
tracker.end()
print("the end", flush=True)
"""


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


@needs_tensorboard
def test_tensorboard_on_a_full_disk_does_not_end_the_training(tmp_path):
    process = python(FULL_DISK, tmp_path)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    warning, end = out.splitlines()
    assert warning.startswith("warning: TensorBoard is off from here on") and end == "the end"


WANDB = """
import socket, sys
def print_look_ups(event, args):
    looks_up = event == "socket.getaddrinfo"
    if looks_up or event == "socket.connect" and args[0].family != socket.AF_UNIX:
        print(event, args, flush=True)
sys.addaudithook(print_look_ups)
from tests.plugins.trackers.test_trackers import Path, run_in, start
path, first, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
(tracker,) = start(run_in(path, wandb="offline", wandb_project="digits"), first_step=first)
for step in range(first, last + 1):
    tracker.reported(step, {"train_loss": step + 0.5})
print("logged", flush=True)
if sys.argv[4] == "killed":
    sys.stdin.read()
tracker.end()
"""


def helpers_of(pid):
    """Live processes of W&B that serve a process."""
    helpers = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"wandb-core" in words[0] and str(pid).encode() in words:
            helpers.append(words)
    return helpers


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
    wait_for(
        lambda: b"3.5" in b"".join(record(path) for path in run_dir.glob("wandb/*/")), limit_s=60
    )
    killed.kill()
    killed.communicate(timeout=30)
    wait_for(lambda: not helpers_of(killed.pid))
    resumed = python(WANDB, run_dir, 3, 5, "resumed")
    out, err = resumed.communicate(timeout=60)
    assert resumed.returncode == 0 and err == ""
    words = f"Weights & Biases: upload it with: wandb sync {run_dir}/wandb/offline-run-*\nlogged\n"
    assert out == words  # and no network access
    wait_for(lambda: not helpers_of(resumed.pid), limit_s=60)
    attempts = sorted(run_dir.glob("wandb/offline-run-*"))
    assert len(attempts) == 2
    assert all(path.name.endswith(f"-{run_dir.name}") for path in attempts)
    assert b"digits" in record(attempts[0]) and b"5.5" in record(attempts[1])
    files = [path for path in run_dir.rglob("*") if path.is_file()]
    assert not [path for path in files if b"a-secret" in path.read_bytes()]


def record(path):
    """The bytes of an attempt's `.wandb` file, where values stand as plain text."""
    return b"".join(file.read_bytes() for file in path.glob("*.wandb"))
