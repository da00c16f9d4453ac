"""The file that users copy beside their script: it detects the stop and writes the marker."""

import importlib.util
import os
import signal
import sys
from pathlib import Path

import pytest

from jobs.rundir import RunDir, read_json

PATH = Path(__file__).resolve().parents[2] / "configs/own_script/kit_stop.py"


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


def test_the_stop_file_is_looked_for_once_a_second(kit_stop, attempt, monkeypatch):
    stop = kit_stop.Stop(every=1)
    now = [100.0]
    monkeypatch.setattr(kit_stop.time, "monotonic", lambda: now[0])
    assert not stop.should_stop(1)
    attempt.stop_requested.touch()
    assert not stop.should_stop(2)
    now[0] += 1
    assert stop.should_stop(3)


def test_only_rank_0_looks_for_the_file(kit_stop, attempt, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    attempt.stop_requested.touch()
    assert not kit_stop.Stop(every=1).should_stop(1)


def test_ranks_agree_every_so_many_steps(kit_stop, attempt):
    attempt.stop_requested.touch()
    stop = kit_stop.Stop(every=10)
    assert [step for step in range(1, 31) if stop.should_stop(step)] == [10, 20, 30]


def test_the_marker_says_how_far_a_stopped_script_came(kit_stop, attempt):
    attempt.stop_requested.touch()
    stop = kit_stop.Stop(every=1)
    assert stop.should_stop(7)
    with pytest.raises(SystemExit) as left:
        stop.stopped()
    assert left.value.code == 0
    assert read_json(attempt.outcome) == {"status": "stopped", "global_step": 7}
    assert sorted(os.listdir(attempt.path)) == ["outcome.json", "stop_requested"]


def test_only_rank_0_leaves_the_marker(kit_stop, attempt, monkeypatch):
    with pytest.raises(SystemExit):
        kit_stop.Stop().completed()
    assert read_json(attempt.outcome)["status"] == "completed"
    attempt.outcome.unlink()
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(SystemExit):
        kit_stop.Stop().completed()
    assert not attempt.outcome.exists()


def test_without_the_kit_nothing_stops_and_signals_are_left_alone(kit_stop, monkeypatch, tmp_path):
    monkeypatch.delenv("KIT_STOP_FILE", raising=False)
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGTERM)
    stop = kit_stop.Stop(every=1)
    assert signal.getsignal(signal.SIGTERM) is before
    assert not stop.should_stop(1)
    with pytest.raises(SystemExit):
        stop.completed()
    assert os.listdir(tmp_path) == []
