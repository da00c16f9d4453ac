"""The content of a local run's live line, and the times at which it is written."""

import json
import os
import time

import pytest

from slurm_job_kit.jobs.commands.views import live_progress
from slurm_job_kit.jobs.commands.views.live_progress import ProgressLine
from slurm_job_kit.jobs.runs.state import read_progress


@pytest.fixture
def clock(monkeypatch):
    """The time in seconds, to be moved by hand."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def write(run, step, epoch, at, total=40):
    """Progress as rank 0 writes it, at a time of the file system's clock."""
    run.progress.write_text(json.dumps({"step": step, "total": total, "epoch": epoch}))
    os.utime(run.progress, (at, at))


def shown(line, capsys):
    line.show()
    return capsys.readouterr().err


def test_the_metrics_of_a_script_are_shown_by_their_names(run):
    values = {"step": 7, "total": None, "metrics": {"loss": 0.123456, "bleu": 31.0}}
    run.progress.write_text(json.dumps(values))
    now = read_progress(run)
    assert now is not None
    assert live_progress.format_progress(now) == "step 7/?  loss 0.1235  bleu 31"
    values["metrics"] = {"eval_accuracy": 0.5, "loss": 0.25, "eval_bleu": 3.0}
    run.progress.write_text(json.dumps(values))
    now = read_progress(run)
    assert now is not None
    text = "step 7/?  loss 0.25  held-out accuracy 50.00%  bleu 3"
    assert live_progress.format_progress(now) == text


def test_what_an_earlier_attempt_wrote_is_not_shown(run, clock, capsys):
    write(run, 20, 1, at=1)
    line = ProgressLine(run)
    assert shown(line, capsys) == ""
    write(run, 20, 1, at=2, total=80)
    assert shown(line, capsys) == "step 20/80\n"
    line.begin()
    clock[0] += 60
    assert shown(line, capsys) == ""
    write(run, 21, 2, at=3, total=80)
    assert shown(line, capsys) == "step 21/80\n"


def test_without_a_terminal_there_is_a_line_of_an_epoch_at_most_every_10_s(run, clock, capsys):
    line = ProgressLine(run)
    assert shown(line, capsys) == ""
    said = []
    for epoch in range(40):
        write(run, epoch, epoch, at=epoch)
        said.append(shown(line, capsys))
        clock[0] += 0.5
    assert [text for text in said if text] == ["step 0/40\n", "step 20/40\n"]
    clock[0] += 60
    write(run, 39, 39, at=60)
    assert shown(line, capsys) == "step 39/40\n"
    clock[0] += 60
    assert shown(line, capsys) == "", "the same epoch"
