"""The file that users copy beside their script: it detects the stop and writes the marker."""

import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch

from slurm_job_kit.jobs.base.files import read_json
from slurm_job_kit.jobs.contract import records
from slurm_job_kit.jobs.contract.records.timeline import read_events
from slurm_job_kit.jobs.contract.records.training import Progress, SavedCheckpoint
from slurm_job_kit.jobs.contract.rundir import RunDir
from tests.core.run_files import read_progress_steps
from tests.core.two_hosts import look

PATH = Path(__file__).resolve().parents[3] / "configs/examples/kit_stop.py"


@pytest.fixture
def kit_stop(monkeypatch):
    """The module, imported as beside a script; restores the signal handlers afterwards."""
    numbers = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
    before = [signal.getsignal(number) for number in numbers]
    monkeypatch.setenv("RANK", "0")
    spec = importlib.util.spec_from_file_location("kit_stop", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module.os, "_exit", sys.exit)  # this process must not exit
    yield module
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.fixture
def attempt(tmp_path, monkeypatch):
    monkeypatch.setenv("KIT_STOP_FILE", str(tmp_path / "attempt-1/stop_requested"))
    (tmp_path / "attempt-1").mkdir()
    return RunDir(tmp_path).attempt(1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_each_stop_signal_is_a_warning(kit_stop, attempt, number):
    stop = kit_stop.Stop(every=1)
    assert not stop.should_stop(1)
    os.kill(os.getpid(), number)
    assert stop.should_stop(2)


def test_the_stop_file_is_looked_for_once_a_second(kit_stop, attempt, clock):
    stop = kit_stop.Stop(every=1)
    assert not stop.should_stop(1)
    attempt.stop_requested.touch()
    assert not stop.should_stop(2)
    clock[0] += 1
    assert stop.should_stop(3)


# One of two ranks. Each case has the moments of the calls of should_stop, the call before which
# rank 1 alone is warned, and the arguments of Stop. Prints the calls that agreed, or were True.
RANK = """
import json, os, signal, sys, time
import torch.distributed as dist
from kit_stop import Stop
rank, now, agreed = int(sys.argv[1]), [0.0], []
time.monotonic = lambda: now[0]
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
reduce = dist.all_reduce
dist.all_reduce = lambda *words, **named: (agreed.append(call), reduce(*words, **named))
for moments, warned_before, arguments in json.loads(sys.argv[3]):
    now[0], answers = 0.0, []
    agreed.clear()
    stop = Stop(*arguments)
    for call, now[0] in enumerate(moments, 1):
        if call == warned_before and rank == 1:
            signal.raise_signal(signal.SIGTERM)
        answers += [call] * stop.should_stop(1000 + call)
    print(json.dumps([agreed, answers]), flush=True)
os._exit(0)
"""


def calls(every_s: float, number: int = 40) -> list[float]:
    return [every_s * call for call in range(1, number + 1)]


def test_ranks_agree_by_the_clock_and_all_stop_although_one_alone_was_warned(
    attempt, tmp_path, monkeypatch
):
    """The warning comes before the last of these agreements: from there on each call is told."""
    becoming_slow = [*calls(1 / 64, 5), *(each + 8.0 for each in calls(8.0, 4))]
    slow_and_fast = [8.0 * ((call + 1) // 2) + 1e-3 * call for call in range(1, 10)]
    cases = (
        (calls(8.0, 6), (), [1, 2, 3, 4]),
        (calls(1 / 128), (), [1, 3, 7, 13, 19, 25, 31]),
        (calls(1e-4), (), [1, 3, 7, 15, 31]),
        (becoming_slow, (), [1, 3, 6, 7, 8]),
        (slow_and_fast, (), [1, 2, 4, 5, 6]),
        (calls(8.0, 6), (2,), [1, 3, 5]),
    )
    monkeypatch.setenv("PYTHONPATH", str(PATH.parent))
    words = json.dumps([(moments, agreed[-1], given) for moments, given, agreed in cases])
    processes = []
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        argv = [sys.executable, "-c", RANK, rank, str(tmp_path / "store"), words]
        processes.append(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True))
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    expected = [[agreed, [*range(agreed[-1], len(m) + 1)]] for m, _, agreed in cases]
    for output in outputs:
        assert [json.loads(line) for line in output.splitlines()] == expected


def test_without_the_kit_nothing_stops_or_is_written_and_signals_are_left_alone(
    kit_stop, monkeypatch, tmp_path
):
    monkeypatch.delenv("KIT_STOP_FILE", raising=False)
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGTERM)
    stop = kit_stop.Stop(every=1)
    assert signal.getsignal(signal.SIGTERM) is before
    assert not stop.should_stop(1)
    stop.progress(1, 2, loss=OfGpu())
    stop.saved(1)
    with pytest.raises(SystemExit):
        stop.completed()
    assert os.listdir(tmp_path) == []


@pytest.fixture
def run(attempt):
    """The run directory of `attempt`, with the folder that the kit makes."""
    run = RunDir(attempt.path.parent)
    run.timeline("x").parent.mkdir()
    return run


@pytest.fixture
def clock(kit_stop, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(kit_stop.time, "monotonic", lambda: now[0])
    return now


def test_a_report_is_what_the_kit_reads(kit_stop, run):
    stop = kit_stop.Stop()
    stop.progress(3, 40, loss=0.25, samples=7)
    stop.saved(2)
    metrics = {"loss": 0.25, "samples": 7.0}
    assert records.read(Progress, run.progress) == Progress(3, 40, metrics=metrics)
    assert read_progress_steps(run.progress)[0] == 3
    assert records.read(SavedCheckpoint, run.saved) == SavedCheckpoint(2)
    events = [(e.event, e.attempt, e.step) for e in read_events(run.timeline("rank-00000"))]
    assert events == [("first_step", 1, 3), ("save", 1, 2)]
    assert sorted(os.listdir(run.path)) == ["attempt-1", "progress.json", "saved.json", "timeline"]


def test_a_report_at_every_step_is_written_once_a_second_and_the_last_one_at_the_end(
    kit_stop, run, clock
):
    stop, written = kit_stop.Stop(), []
    for step in range(1, 51):
        stop.progress(step, 50, loss=step / 4)
        written.append(read_progress_steps(run.progress)[0])
        clock[0] += 0.25
    assert list(dict.fromkeys(written)) == [*range(1, 51, 4), 50]
    assert len(read_events(run.timeline("rank-00000"))) == 1


@pytest.mark.parametrize("end", ["stopped", "completed"])
def test_the_last_report_is_written_before_the_marker(kit_stop, run, clock, end):
    run.attempt(1).stop_requested.touch()
    stop = kit_stop.Stop(every=1)
    assert stop.should_stop(7)
    for step in (1, 2):
        stop.progress(step)
    with pytest.raises(SystemExit):
        getattr(stop, end)()
    assert read_progress_steps(run.progress)[0] == 2
    assert read_json(run.attempt(1).outcome) == {"status": end, "global_step": 7}
    # A stop comes after a save, also where no saved() has reported it.
    saved = SavedCheckpoint(7) if end == "stopped" else None
    assert records.read(SavedCheckpoint, run.saved) == saved


class OfGpu:
    """A number that can be read only while its device works."""

    def __float__(self) -> float:
        raise RuntimeError("the device has failed")


NO_NUMBERS = {
    "val_loss": None,
    "digits": "12",
    "lr": [1e-3, 1e-4],
    "grads": torch.zeros(2),
    "gpu": OfGpu(),
}


def test_what_is_no_number_is_left_out(kit_stop, run):
    loss = torch.tensor(0.5, requires_grad=True)
    numbers = {"loss": loss, "np": numpy.float32(2), "nan": math.nan, "ok": True}
    stop = kit_stop.Stop()
    stop.progress(numpy.int64(3), total=math.inf, **numbers, **NO_NUMBERS)
    progress = records.read(Progress, run.progress)
    assert progress is not None and (progress.step, progress.total) == (3, None)
    written = progress.metrics or {}
    assert str(written) == "{'loss': 0.5, 'np': 2.0, 'nan': nan, 'ok': 1.0}"


def test_steps_that_are_no_numbers_end_no_training(kit_stop, run):
    stop = kit_stop.Stop()
    for step in (None, "7", math.nan, math.inf, torch.zeros(2)):
        stop.progress(step, 9, loss=1.0)
        stop.saved(step)
    assert not run.progress.exists() and not run.saved.exists()
    stop.saved(torch.tensor(6))
    stop.should_stop(numpy.int64(7))
    stop.progress(7)
    with pytest.raises(SystemExit):
        stop.completed()
    assert records.read(SavedCheckpoint, run.saved) == SavedCheckpoint(6)
    assert read_json(run.attempt(1).outcome) == {"status": "completed", "global_step": 7}


def test_only_rank_0_looks_for_the_file_reports_and_leaves_the_marker(kit_stop, run, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    run.attempt(1).stop_requested.touch()
    stop = kit_stop.Stop(every=1)
    assert not stop.should_stop(1)
    stop.progress(1, loss=OfGpu())
    stop.saved(1)
    with pytest.raises(SystemExit):
        stop.completed()
    assert sorted(os.listdir(run.path)) == ["attempt-1", "timeline"]
    assert not run.attempt(1).outcome.exists()


def test_a_disk_that_takes_no_report_ends_no_training(kit_stop, attempt, capsys):
    (attempt.path.parent / "saved.json").mkdir()
    stop = kit_stop.Stop()
    stop.progress(1)  # there is no folder timeline
    stop.saved(1)
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 2 and all(line.startswith("kit_stop: [Errno ") for line in errors)


def test_the_stop_file_of_another_host_is_seen(hosts, kit_stop, monkeypatch):
    (hosts.here / "attempt-1").mkdir()
    look(hosts.there, "stop_requested")
    monkeypatch.setenv("KIT_STOP_FILE", str(hosts.there / "attempt-1/stop_requested"))
    stop = kit_stop.Stop(every=1)
    assert not stop.should_stop(1)
    (hosts.here / "attempt-1/stop_requested").write_text("")
    stop.next_look = 0.0
    assert stop.should_stop(2)
