"""What a local run and a resume print of the progress."""

import os
import re
import time
from dataclasses import replace

import pytest

from slurm_job_kit.jobs.commands import local_lines
from slurm_job_kit.jobs.contract.spec import Launch, Spec
from tests.core import run_files
from tests.core.run_files import write_json


@pytest.mark.parametrize(
    ("before", "now", "line"),
    [
        ({"step": 20}, {"step": 60, "total": 220, "eta_s": 40}, "step 60/220  about 40 s left\n"),
        ({"step": 20}, {"step": 60, "total": 100, "loss": 0.42}, "step 60/100  loss 0.42\n"),
        ({"step": 20}, {"step": 60, "metrics": {"f1": 0.5}}, "step 60/?  f1 0.5\n"),
        (None, {"step": 9, "total": 9, "loss": 1.0}, "step 9/9  loss 1\n"),
        ({"step": 7}, {"step": 7}, ""),
        (None, None, ""),
    ],
)
def test_a_line_has_what_was_reported_since_the_last_one_as_far_as_it_is_known(
    run, monkeypatch, capfd, before, now, line
):
    monkeypatch.setattr(local_lines, "SHOW_S", 0)
    if before:
        write_json(run.progress, before)
    lines = local_lines.ProgressLines(run)
    if now:
        write_json(run.progress, now)
    for _ in range(3):
        lines.show()
    shown = capfd.readouterr().err
    assert shown.startswith(line) and shown.count("\n") == bool(line)


def test_of_a_script_that_reports_nothing_the_last_line_of_rank_0_is_shown_once(
    run, monkeypatch, capfd
):
    monkeypatch.setattr(local_lines, "SHOW_S", 0)
    lines = local_lines.ProgressLines(run)
    for text in ("epoch 1\n", "epoch 1\nepoch 2\n", "epoch 1\nepoch 2\n"):
        run.rank_log(0).write_text(text)
        lines.show()
    assert capfd.readouterr().err == "rank 0: epoch 1\nrank 0: epoch 2\n"


def test_the_time_left_of_a_script_is_estimated_from_its_steps_between_two_lines(
    run, monkeypatch, capfd
):
    monkeypatch.setattr(local_lines, "SHOW_S", 0)
    lines = local_lines.ProgressLines(run)
    for step in (20, 60):
        write_json(run.progress, {"step": step, "total": 100})
        lines.show()
    assert re.fullmatch("step 20/100\nstep 60/100  about .* left\n", capfd.readouterr().err)


def test_a_resume_begins_with_the_step_from_which_it_continues(run):
    assert local_lines.format_continues(run) == "begins with step 1: no checkpoint was saved"
    run_files.recorded(run, checkpoint="step-00000010")
    run_files.recorded(run, attempt=2, checkpoint=None)
    assert "has lost step-00000010: bring it back" in local_lines.format_continues(run)
    (run.checkpoints / "step-00000010").mkdir()
    os.utime(run.checkpoints / "step-00000010", (time.time() - 125,) * 2)
    write_json(run.progress, {"step": 12, "total": 220})
    assert local_lines.format_continues(run) == "continues from step 10 of 220 (saved 2 min ago)"


def test_of_a_script_it_is_the_step_that_it_has_reported_as_saved(run):
    run.spec.write_text(replace(Spec(), launch=Launch(script="x.py")).to_json())
    assert local_lines.format_continues(run) == ""
    write_json(run.saved, {"step": 30})
    assert local_lines.format_continues(run).startswith("continues from step 30 (saved ")


@pytest.mark.parametrize(
    ("saved", "words"), [(None, "nothing saved"), (12, "saved"), (10, "saved is step 10")]
)
def test_a_stop_names_what_is_saved(run, saved, words):
    run_files.recorded(run, cause="interrupted", decision="hold")
    write_json(run.result, {"status": "held", "global_step": 12})
    write_json(run.progress, {"step": 12, "total": 220})
    if saved:
        (run.checkpoints / f"step-{saved:08}").mkdir()
    assert local_lines.format_stopped(run) == f"stopped after step 12 of 220, {words}"
