"""Rank 0's log lines, metrics.jsonl and progress, and the effect of a full disk on them."""

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from slurm_job_kit.jobs.base.files import read_jsonl
from slurm_job_kit.jobs.commands.local_lines import format_progress
from slurm_job_kit.jobs.contract import records
from slurm_job_kit.jobs.contract.records import training
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.contract.spec import Spec, Train
from slurm_job_kit.trainer.data.batches import Batches, TrainingLength
from slurm_job_kit.trainer.errors import StorageError
from slurm_job_kit.trainer.training import reporter as module
from slurm_job_kit.trainer.training.reporter import Progress, Reporter
from tests.core.ranks import context_of
from tests.core.run_files import read_progress_steps

# 10 rounds of 2 x 8 samples in 4 steps of 3 rounds; the last one has 1.
BATCHES = Batches.of(Train(micro_batch_size=8, grad_accum_steps=3), 167, 2)
LENGTH = TrainingLength.of(Train(epochs=3), BATCHES)


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(s=1000.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now.s))
    return now


@pytest.fixture
def report(tmp_path):
    """Opens a reporter of one run directory, as each attempt does."""
    opened = []

    def open_at(step=0, metrics_bytes=0):
        opened.append(Reporter(context_of(tmp_path, Spec()), LENGTH, step, metrics_bytes))
        return opened[-1]

    yield open_at
    for reporter in opened:
        reporter.close()


def train(reporter, steps):
    for step in steps:
        reporter.progress.update(step=step)
        reporter.report_training(step, {"train_loss": 1 / step}, 0.1, data_wait_s=0.0)
        if step % LENGTH.steps_per_epoch == 0:
            reporter.report_evaluation(step, {"eval_loss": 2 / step, "eval_accuracy": 1 - 1 / step})


def test_samples_count_each_short_last_step_of_an_epoch():
    assert [LENGTH.samples(step) for step in range(6)] == [0, 48, 96, 144, 160, 208]


def test_a_log_line_has_loss_lr_speed_time_left_data_wait_and_memory(report, clock, capsys):
    reporter = report(step=2)
    clock.s += 0.5
    means = {"train_loss": 1.23456, "train_accuracy": 0.5, "train_mae": 123.456}
    reporter.report_training(4, means, 0.05, data_wait_s=0.02)
    head, memory = capsys.readouterr().out.rsplit("  mem ", 1)
    assert head == (
        "step 4/12  epoch 1/3  loss 1.235  accuracy 50.00%  mae 123.5  lr 0.05  128 samples/s  "
        "2 s left  data 4%"
    )
    number, unit = memory.split()
    assert 0.1 < float(number) < 64 and unit == "GiB"


def test_speed_leaves_out_an_evaluation_but_the_share_of_data_does_not(report, clock, capsys):
    reporter = report()
    clock.s += 1
    reporter.progress.update(step=1)
    clock.s += 8
    reporter.report_evaluation(1, {"eval_loss": 1.0, "eval_accuracy": 0.5})
    clock.s += 1
    reporter.report_training(2, {"train_loss": 1.0}, 0.1, data_wait_s=1.0)
    clock.s += 1
    reporter.report_training(3, {"train_loss": 1.0}, 0.1, data_wait_s=0.5)
    clock.s += 200
    reporter.report_training(4, {"train_loss": 1.0}, 0.1, data_wait_s=0)
    *_, line, next_line, slow = capsys.readouterr().out.splitlines()
    assert "  48 samples/s  8 s left  data 10%  " in line
    assert "  48 samples/s  7 s left  data 50%  " in next_line
    assert "  0.08 samples/s  " in slow


def test_metrics_and_log_number_the_epochs_alike_from_one(report, tmp_path, capsys):
    train(report(), range(1, 13))
    logged = re.findall(r"^step (\d+)/12  epoch (\d)/3", capsys.readouterr().out, re.M)
    recorded = [(line["step"], line["epoch"]) for line in read_jsonl(tmp_path / "metrics.jsonl")]
    assert recorded == [(int(step), int(epoch)) for step, epoch in logged]
    assert [epoch for step, epoch in recorded if step in (1, 4, 5, 12)] == [1, 1, 1, 2, 3, 3]


def test_a_superseded_attempt_writes_to_no_metrics_that_are_read(report, tmp_path):
    old = report()
    train(old, range(1, 5))
    size = old.sync()
    train(old, range(5, 7))
    new = report(step=4, metrics_bytes=size)
    for step in (5, 6, 7):
        train(old, [step + 2])
        train(new, [step])
    assert [line["step"] for line in read_jsonl(tmp_path / "metrics.jsonl")] == [
        *range(1, 4),
        *(4, 4),
        *range(5, 8),
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "progress.json"]


def test_lost_metrics_are_a_warning_and_the_training_continues(report, tmp_path, capsys):
    train(report(step=4, metrics_bytes=500), [5])
    assert "metrics.jsonl is shorter than" in capsys.readouterr().out
    assert [line["step"] for line in read_jsonl(tmp_path / "metrics.jsonl")] == [5]


def test_metrics_on_a_full_disk_are_an_error_in_one_line(tmp_path):
    reporter = Reporter(context_of(tmp_path, Spec()), LENGTH, 0, 0)
    links = Path("/proc/self/fd").iterdir()
    (metrics,) = [link for link in links if link.resolve() == tmp_path / "metrics.jsonl"]
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, int(metrics.name))
    os.close(full)
    with pytest.raises(StorageError, match=r"^writing \S+metrics.jsonl: No space left .* resume"):
        reporter.report_training(1, {"train_loss": 1.0}, 0.1, data_wait_s=0.0)
    with pytest.raises(StorageError):
        reporter.close()


def test_a_failing_progress_and_lines_on_a_full_disk_end_no_training(report, tmp_path, monkeypatch):
    (tmp_path / "progress.json").mkdir()
    with open("/dev/full", "w") as full, monkeypatch.context() as patch:
        patch.setattr("sys.stdout", full)
        train(report(), range(1, 5))
        # Python keeps the lines and would fail at them once more when the file is closed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())
    assert len(read_jsonl(tmp_path / "metrics.jsonl")) == 5


def live_line(path):
    record = records.read_leniently(training.Progress, RunDir(path).progress)
    assert record is not None
    return format_progress(record, None, 0.0)


def test_the_live_line_reads_what_the_reporter_wrote(report, clock, tmp_path):
    reporter = report()
    assert live_line(tmp_path) == "step 0/12"
    clock.s += 100
    train(reporter, [4])
    reporter.sync()
    line = "step 4/12  loss 0.25  held-out accuracy 75.00%  about 3 min 20 s left"
    assert live_line(tmp_path) == line
    assert json.loads((tmp_path / "progress.json").read_text())["eta_s"] == 200


@pytest.mark.parametrize(
    ("means", "words"),
    [
        ({"eval_loss": 2.5, "eval_perplexity": 12.18}, "perplexity 12.18"),
        ({"eval_loss": 2.5}, "loss 2.5"),
        (
            {"eval_loss": 2.5, **{f"eval_m{i}": i / 3 for i in range(99)}},
            "m0 0  m1 0.3333  m2 0.6667  m3 1",
        ),
    ],
)
def test_progress_shows_four_metrics_of_any_objective(report, tmp_path, means, words):
    reporter = report()
    reporter.report_evaluation(4, means)
    reporter.sync()
    assert live_line(tmp_path) == f"step 0/12  held-out {words}"


def test_progress_holds_the_last_step_after_a_sync_and_a_close(report, tmp_path):
    reporter = report()
    for last, end in ((99, reporter.sync), (199, reporter.close)):
        for step in range(last - 99, last + 1):
            reporter.progress.update(step=step)
        end()
        assert read_progress_steps(tmp_path / "progress.json")[0] == last


def test_progress_is_written_at_most_once_a_second(tmp_path, monkeypatch):
    now, path = SimpleNamespace(s=0.0), tmp_path / "progress.json"
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now.s))
    file, seen = Progress(path), []
    for step in range(1, 41):
        file.update(step=step)
        seen.append(read_progress_steps(path)[0])
        now.s += 0.125
    assert seen == [1 + 8 * (number // 8) for number in range(40)]


def test_the_size_after_a_cut_is_that_of_the_remaining_lines(report):
    """A stop may come before the next line: its checkpoint would remember lines that are gone."""
    reporter = report()
    train(reporter, range(1, 4))
    kept = reporter.sync()
    train(reporter, range(4, 8))
    reporter.sync()
    assert report(step=3, metrics_bytes=kept).sync() == kept
