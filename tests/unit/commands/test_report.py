"""The command report: text, JSON and page of runs in any state."""

import json
import os
import re
import socket
import sys
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from slurm_job_kit.jobs import records
from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.commands.times import summary
from slurm_job_kit.jobs.commands.times.spans import Use
from slurm_job_kit.jobs.records.ended import Action, Cause
from slurm_job_kit.jobs.records.queued import Claim
from slurm_job_kit.jobs.records.training import Metric, Result
from slurm_job_kit.jobs.rundir import append_jsonl
from slurm_job_kit.jobs.runs import run_lock, state
from tests.unit.commands.report_kit import (
    BEGIN,
    EVIDENCE,
    attempt,
    event,
    lines,
    started,
    two_attempts,
    write_run,
)
from tests.unit.run_files import make_run


@pytest.fixture
def requeued(here):
    return write_run(make_run(here), two_attempts(), lines(range(10, 60, 10), train_loss=1.0))


def reported(capsys, *words):
    """stdout of report."""
    assert main(["report", *words]) == 0
    return capsys.readouterr().out


def page_of(run, capsys):
    assert main(["report", str(run.path)]) == 0
    capsys.readouterr()
    return run.report.read_text()


def test_the_json_has_each_use_hours_and_goodput(requeued, capsys):
    (report,) = json.loads(reported(capsys, "--json"))["runs"]
    assert sum(report["seconds"].values()) == report["wall_s"] == 100
    assert report["state"] == "completed" and report["allocated_s"] == 40 + 40
    assert report["node_hours"] == round(2 * 80 / 3600, 4)
    training = (48 - 18 - 11) + (98 - 68)  # the first attempt was at step 20 at second 37
    assert report["seconds"]["redone"] == 11 and report["seconds"]["training"] == training
    assert report["goodput"] == round(training / 80, 4) and report["steps_redone"] == 10
    assert [each["cause"] for each in report["attempts"]] == ["preemption", "completed"]
    assert not requeued.report.exists()


def test_spare_nodes_count_in_the_hours_and_show_what_they_saved(here, capsys):
    first, second = two_attempts()
    assert first.record is not None
    evidence = replace(EVIDENCE, has_spares=True)
    retried = replace(first.record, cause=Cause.NODE, decision=Action.RETRY, evidence=evidence)
    first = replace(first, record=replace(retried, spares=("n3",)))
    write_run(make_run(here), [first, second])
    (report,) = json.loads(reported(capsys, "--json"))["runs"]
    # The job has its nodes until the next attempt, 10 s later.
    assert report["spare_node_hours"] == round(50 / 3600, 4) and report["saved_requeues"] == 1
    assert report["node_hours"] == round((2 * 90 + 50) / 3600, 4)
    assert "0.0139 of them of spare nodes, which saved 1 requeue" in reported(capsys, "tiny")


def test_gpu_hours_are_those_that_the_spec_asked_for(requeued):
    spec = json.loads(requeued.spec.read_text())
    spec["slurm"]["gpus_per_node"] = 8
    requeued.spec.write_text(json.dumps(spec))
    assert summary.summarize(state.read(requeued)).gpu_hours == pytest.approx(8 * 2 * 80 / 3600)


def test_the_text_names_what_is_not_explained_even_if_it_is_nothing(requeued, capsys):
    text = reported(capsys, "tiny")
    assert re.search(r"^redone +11\.0 s +11\.0%$", text, re.M)
    assert re.search(r"^not explained +0\.0 s +0\.0%$", text, re.M)
    assert "10 steps redone" in text and "goodput 61.2%" in text


def test_runs_stand_side_by_side_and_in_one_page_in_the_directory_of_the_first(
    here, requeued, capsys
):
    other = write_run(make_run(here, "20260202", "other"), two_attempts()[1:])
    text = reported(capsys, "tiny", "other")
    head = next(line for line in text.splitlines() if line.startswith(" " * 10))
    assert head.split() == ["tiny", "20260101", "other", "20260202"]
    page = requeued.report.read_text()
    assert "tiny 20260101" in page and "other 20260202" in page
    assert not other.report.exists()


def test_make_passes_runs_as_one_text(here, requeued, capsys):
    write_run(make_run(here, "20260202", "other"), two_attempts()[1:])
    report = json.loads(reported(capsys, "--json", "--runs=tiny 'other'"))["runs"]
    assert [each["name"] for each in report] == ["tiny", "other"]
    assert main(["report", "--runs='tiny"]) == 2
    assert "quot" in capsys.readouterr().err


def test_an_unknown_run_is_a_mistake_that_names_near_ones(requeued, capsys):
    assert main(["report", "tony"]) == 2
    assert "did you mean tiny" in capsys.readouterr().err


class Outline(HTMLParser):
    """What a page refers to, and its elements."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.references, self.ids = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "data", "action"):
                self.references.append(value)
            if name == "id":
                self.ids.append(value)


def test_the_page_has_plots_and_no_external_resource(requeued, capsys):
    text = page_of(requeued, capsys)
    outline = Outline(text)
    assert outline.tags.count("svg") == 5  # time, loss, throughput, learning rate, memory
    assert all(reference.startswith("#") for reference in outline.references)
    assert len(outline.ids) == len({*outline.ids})
    assert not {"script", "link", "img", "iframe", "image"} & {*outline.tags}
    assert "url(http" not in text and "@import" not in text and "<!DOCTYPE svg" not in text
    assert "prefers-color-scheme: dark" in text
    for word in ("loss", "throughput, samples/s", "learning rate", "time by use, s"):
        assert re.search(rf"<text[^>]*>{word}</text>", text), word  # as text, not as a path


def test_a_page_uses_the_colours_of_its_style_sheet_alone(requeued, capsys):
    svgs = re.findall(r"<svg.*?</svg>", page_of(requeued, capsys), re.S)
    colours = {colour for svg in svgs for colour in re.findall(r"#[0-9a-f]{6}\b", svg)}
    assert colours == set()


def test_hostile_names_are_shown_and_do_nothing(here, capsys):
    name = "<script>alert(1)</script>"
    spells = {f"train_{name}": 1.0, "train_$\\frac{$": 2.0, "_\x1b[31m\n": 3.0, "a" * 500: 4.0}
    run = write_run(make_run(here, "<b>1\x1b[2J", "<i>"), two_attempts(), lines([1, 2], **spells))
    assert main(["report", str(run.path)]) == 0
    assert "\x1b" not in capsys.readouterr().out
    text = run.report.read_text()
    assert not {"script", "b", "i"} & {*Outline(text).tags}
    assert "&lt;script&gt;alert(1)" in text and "$\\frac{$" in text and "\x1b" not in text


def test_values_that_are_not_finite_are_counted_and_not_drawn(here, capsys):
    values = [1.0, float("nan"), float("inf"), 0.5]
    metrics = [{"step": step, "train_loss": value} for step, value in enumerate(values, 1)]
    text = page_of(write_run(make_run(here), two_attempts(), metrics), capsys)
    assert "2 values are NaN or infinite" in text
    metrics = [{"step": 1, "train_loss": float("nan")}]
    text = page_of(write_run(make_run(here, "2"), two_attempts(), metrics), capsys)
    assert "1 values are NaN or infinite" in text


def test_a_run_with_a_single_step_has_a_dot(here, capsys):
    metrics = [{"step": 1, "epoch": 1, "train_loss": 0.0, "lr": 0.0}]
    text = page_of(write_run(make_run(here), two_attempts(), metrics), capsys)
    assert "loss</text>" in text and "<use " in text


def test_a_run_without_metrics_and_without_attempts(here, capsys):
    text = page_of(make_run(here), capsys)
    assert "No metrics.jsonl" in text
    (report,) = json.loads(reported(capsys, "--json"))["runs"]
    assert (report["state"], report["goodput"], report["attempts"]) == ("not started", None, [])


def test_a_script_of_ones_own_has_no_metrics_and_that_is_written_there(here, capsys):
    run = make_run(here)
    spec = json.loads(run.spec.read_text())
    spec["launch"]["script"] = "train.py"
    run.spec.write_text(json.dumps(spec))
    events = [event(11, "torchrun"), event(13, "spawn"), event(90, "torchrun_end")]
    write_run(run, [attempt(1, 10, 91, events, decision=Action.DONE, cause=Cause.COMPLETED)])
    assert "No metrics.jsonl" in page_of(run, capsys)
    assert summary.summarize(state.read(run)).time_of(Use.TRAINING) == 77_000


def test_a_held_run_ends_with_its_last_attempt(here, capsys):
    held = [attempt(1, 10, 50, started(10), decision=Action.HOLD, cause=Cause.CRASH)]
    run = write_run(make_run(here), held)
    records.write(run.result, Result("held", "three crashes", metrics=(Metric("x", 1.0),)))
    (report,) = json.loads(reported(capsys, "--json"))["runs"]
    assert (report["state"], report["wall_s"]) == ("held", 50)


def test_a_running_run_lasts_to_now(here):
    running = replace(attempt(1, 10, 50, started(10)), record=None, stop=None)
    run = write_run(make_run(here), [replace(running, events=running.events[:-1])])
    run_lock.claim(run, run_lock.this_process(None), 1)
    time_summary = summary.summarize(state.read(run), now=BEGIN + 70)
    assert (time_summary.state, time_summary.wall, time_summary.time_of(Use.TRAINING)) == (
        "not ended",
        70_000,
        52_000,
    )


def test_a_requeued_run_waits_until_now(here):
    run = write_run(make_run(here), two_attempts()[:1])
    time_summary = summary.summarize(state.read(run), now=BEGIN + 400)
    assert (time_summary.state, time_summary.time_of(Use.QUEUE)) == ("not ended", 8000 + 350_000)


def test_without_matplotlib_there_are_tables_and_a_line_that_helps(requeued, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    text = page_of(requeued, capsys)
    assert "<svg" not in text and "pip install matplotlib" in text and "not explained" in text


def test_a_directory_that_refuses_the_page_leaves_the_text(requeued, capfd):
    requeued.report.mkdir()
    assert main(["report", "tiny"]) == 0
    out, err = capfd.readouterr()
    assert "not explained" in out and "--out PATH" in err
    assert main(["report", "tiny", "--out", str(requeued.path / "none/x.html")]) == 1


def test_a_damaged_timeline_and_a_damaged_spec_are_no_error(requeued, capsys):
    requeued.timeline("rank-00000").write_bytes(b'\xff\x00{"t": 1\n[]\n{"event": "x"}\n')
    requeued.spec.write_text("{")
    requeued.metrics.write_bytes(b'\xff\n{"step": "a"}\n[1]\n{"step": 1, "train_loss": "x"}\n')
    (report,) = json.loads(reported(capsys, "--json", str(requeued.path)))["runs"]
    assert report["not_explained"] > 0 and report["gpu_hours"] is None
    assert main(["report", str(requeued.path)]) == 0


def test_a_held_run_that_was_queued_again_has_not_ended(here):
    held = [attempt(1, 10, 50, started(10), decision=Action.HOLD, cause=Cause.CRASH)]
    run = write_run(make_run(here), held)
    records.write(run.result, Result("held", "three crashes"))
    again = {"t": BEGIN + 60, "event": "submit", "attempt": None}
    append_jsonl(run.timeline("submit"), again)
    time_summary = summary.summarize(state.read(run), now=BEGIN + 80)
    assert (time_summary.state, time_summary.wall) == ("not ended", 80_000)
    assert (time_summary.time_of(Use.IDLE), time_summary.time_of(Use.QUEUE)) == (
        10_000,
        8000 + 20_000,
    )


def test_a_run_that_was_cancelled_in_the_queue_ends_there(here):
    run = write_run(make_run(here), [])
    records.write(run.result, Result("cancelled"))
    os.utime(run.result, (BEGIN + 30, BEGIN + 30))
    time_summary = summary.summarize(state.read(run))
    assert (time_summary.state, time_summary.wall, time_summary.time_of(Use.QUEUE)) == (
        "cancelled",
        30_000,
        28_000,
    )


def test_a_local_run_whose_process_is_gone_is_lost_with_its_last_line(here):
    running = replace(attempt(1, 10, 50, started(10)), record=None, stop=None)
    run = write_run(make_run(here), [replace(running, events=running.events[:-1])])
    gone = Claim("local-here-1", socket.gethostname(), 2**22 + 1, "1", 1)
    records.write(run.owner, gone)
    time_summary = summary.summarize(state.read(run), now=BEGIN + 9999)
    assert (time_summary.state, time_summary.wall) == ("lost", 18_000)
