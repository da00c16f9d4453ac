"""The file that users copy beside their script: it detects the stop and writes the marker."""

import importlib.util
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from slurm_job_kit.jobs import records
from slurm_job_kit.jobs.records.training import (
    Metric,
    Progress,
    SavedCheckpoint,
    read_events,
    read_progress_steps,
)
from slurm_job_kit.jobs.rundir import RunDir, read_json
from tests.core.two_hosts import look

PATH = Path(__file__).resolve().parents[3] / "configs/own_script/kit_stop.py"


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


def test_without_the_kit_nothing_stops_or_is_written_and_signals_are_left_alone(
    kit_stop, monkeypatch, tmp_path, at_exit, capsys
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
    assert os.listdir(tmp_path) == [] and not at_exit and capsys.readouterr().out == ""


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


@pytest.fixture
def at_exit(kit_stop, monkeypatch):
    """The functions that the interpreter would call at its end."""
    results: list[Any] = []
    monkeypatch.setattr(
        kit_stop.atexit, "register", lambda f, **named: results.append(partial(f, **named))
    )
    return results


def test_a_report_is_what_the_kit_reads(kit_stop, run, at_exit, capsys):
    stop = kit_stop.Stop()
    stop.progress(3, 40, loss=0.25, samples=7)
    stop.saved(2)
    metrics = (Metric("loss", 0.25), Metric("samples", 7.0))
    assert records.read(Progress, run.progress) == Progress(3, 40, metrics=metrics)
    assert read_progress_steps(run.progress)[0] == 3
    assert records.read(SavedCheckpoint, run.saved) == SavedCheckpoint(2)
    (event,) = read_events(run.timeline("rank-00000"))
    assert (event.event, event.attempt, event.step) == ("first_step", 1, 3)
    assert capsys.readouterr().out == "step 3/40  loss 0.25  samples 7\n"
    assert sorted(os.listdir(run.path)) == ["attempt-1", "progress.json", "saved.json", "timeline"]


def test_a_report_at_every_step_is_written_once_a_second_and_the_last_one_at_the_end(
    kit_stop, run, clock, at_exit, capsys
):
    stop, written = kit_stop.Stop(), []
    for step in range(1, 51):
        stop.progress(step, loss=step / 4)
        written.append(read_progress_steps(run.progress)[0])
        clock[0] += 0.25
    assert list(dict.fromkeys(written)) == list(range(1, 51, 4))
    (last,) = at_exit
    last()
    assert read_progress_steps(run.progress)[0] == 50
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["step 1/?  loss 0.25", "step 41/?  loss 10.25", "step 50/?  loss 12.5"]
    assert len(read_events(run.timeline("rank-00000"))) == 1


@pytest.mark.parametrize("end", ["stopped", "completed"])
def test_the_last_report_is_written_before_the_marker(kit_stop, run, clock, at_exit, end):
    stop = kit_stop.Stop()
    for step in (1, 2):
        stop.progress(step)
    with pytest.raises(SystemExit):
        getattr(stop, end)()
    assert read_progress_steps(run.progress)[0] == 2
    assert read_json(run.attempt(1).outcome) == {"status": end, "global_step": 0}


class OfGpu:
    """A number that can be read only while its device works."""

    def __float__(self) -> float:
        raise RuntimeError("the device has failed")


def test_at_an_exit_nothing_is_read_from_a_device(kit_stop, run, clock, at_exit):
    stop = kit_stop.Stop()
    stop.progress(1)
    stop.progress(2, loss=OfGpu(), lr=0.5)
    at_exit[0]()
    progress = records.read(Progress, run.progress)
    assert progress is not None
    assert (progress.step, progress.metrics) == (2, (Metric("lr", 0.5),))


def test_only_rank_0_looks_for_the_file_reports_and_leaves_the_marker(
    kit_stop, run, at_exit, monkeypatch
):
    monkeypatch.setenv("RANK", "1")
    run.attempt(1).stop_requested.touch()
    stop = kit_stop.Stop(every=1)
    assert not stop.should_stop(1)
    stop.progress(1, loss=OfGpu())
    stop.saved(1)
    with pytest.raises(SystemExit):
        stop.completed()
    assert sorted(os.listdir(run.path)) == ["attempt-1", "timeline"] and not at_exit
    assert not run.attempt(1).outcome.exists()


def test_a_disk_that_takes_no_report_ends_no_training(kit_stop, attempt, at_exit, capsys):
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


def test_reports_and_marker_are_written_through_no_planted_link(kit_stop, attempt, tmp_path):
    mine = tmp_path / "mine"
    mine.write_text("old")
    (tmp_path / "timeline").mkdir()
    names = ("progress.tmp", "saved.tmp", "attempt-1/outcome.tmp", "timeline/rank-00000.jsonl")
    for name in names:
        (tmp_path / name).symlink_to(mine)
    stop = kit_stop.Stop(every=1)
    stop.progress(1, 1)
    stop.saved(1)
    with pytest.raises(SystemExit):
        stop.completed()
    assert mine.read_text() == "old" and read_json(attempt.outcome)["status"] == "completed"
    assert not [*tmp_path.rglob(".*.tmp")]
