"""The command report: where the time of runs went, as a table, as JSON and as a page."""

import json
import os
import sys

import pytest

from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.base.files import append_jsonl
from slurm_job_kit.jobs.commands import make_words
from slurm_job_kit.jobs.contract import records
from slurm_job_kit.jobs.contract.records.nodes import AttemptPlan, Head
from tests.core import run_files
from tests.core.run_files import answered, make_run, write_json

BEGIN = 1_800_000_000


def event(run, writer, t, name, attempt, **fields):
    line = {"t": BEGIN + t, "event": name, "attempt": attempt}
    append_jsonl(run.timeline(writer), line | fields)


def attempt(run, number, start, stop, steps, **fields):
    """An attempt whose start-up takes 8 s, and whose stop 5 s."""
    run.attempt(number).path.mkdir()
    plan = AttemptPlan(number, "7", ("n1", "n2"), Head("n1", "test", 1), BEGIN + start, None)
    records.write(run.attempt(number).plan, plan)
    event(run, "rank-00000", start + 8, "first_step", number, step=steps[0])
    event(run, "rank-00000", stop - 5, "stopped", number, step=steps[1])
    event(run, "attempt", stop, "close", number)
    times = {"start": BEGIN + start, "stop": BEGIN + stop, "nodes": ["n1", "n2"]}
    own = {"attempt": number, "first_step": steps[0], "last_step": steps[1]}
    append_jsonl(run.attempts, run_files.attempt(**(own | times | fields)))


@pytest.fixture
def requeued(here):
    """A run that waited 10 s, trained 30 steps in 40 s, waited 10 s, and repeated 10 of them."""
    run = make_run(here)
    event(run, "submit", 0, "submit", None)
    attempt(run, 1, 10, 50, (1, 30), cause="preemption", decision="requeue")
    event(run, "rank-00000", 30, "evaluation", 1, step=10, seconds=2.0)
    event(run, "rank-00000", 31, "save", 1, step=10, seconds=3.0, stall_s=1.0)
    attempt(run, 2, 60, 100, (21, 50), cause="completed", decision="done")
    write_json(run.result, {"status": "completed", "global_step": 50})
    write_json(run.progress, {"step": 50, "speed": {"mfu": float("nan"), "tokens_per_s": 9200.0}})
    lines = [{"step": step, "train_loss": 1 / step, "eval_accuracy": 0.5} for step in (1, 2)]
    run.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def reported(capsys, *words):
    assert main(["report", *words]) == 0
    return answered(capsys.readouterr().out)


def test_the_json_has_each_use_hours_and_goodput(requeued, capsys):
    (run,) = reported(capsys, "--json")["runs"]
    training = 2 * (40 - 8 - 5) - 2 - 1
    redone = (40 - 8 - 5 - 2 - 1) * 10 / 30
    assert run["seconds"] == {
        "queue": 20,
        "start_up": 16,
        "training": pytest.approx(training - redone),
        "redone": pytest.approx(redone),
        "evaluation": 2,
        "checkpoint": 1,
        "stopping": 10,
        "idle": 0,
    }
    assert sum(run["seconds"].values()) == pytest.approx(run["wall_s"]) == 100
    assert run["node_hours"] == pytest.approx(160 / 3600, abs=1e-4) and run["steps_redone"] == 10
    assert run["goodput"] == pytest.approx((training - redone) / 80, abs=1e-4)
    assert [each["last_step"] for each in run["attempts"]] == [30, 50]
    assert run["speed"] == {"mfu": None, "tokens_per_s": 9200}


def test_a_run_whose_process_is_gone_lasts_to_the_last_line_of_its_log(here, capsys):
    run = make_run(here)
    event(run, "submit", 0, "submit", None)
    attempt(run, 1, 10, 50, (1, 30), decision="requeue", cause="preemption")
    run.attempts.unlink()
    run.attempt(1).rank_log(0).touch()
    os.utime(run.attempt(1).rank_log(0), (BEGIN + 55, BEGIN + 55))
    (lost,) = reported(capsys, "--json")["runs"]
    assert lost["wall_s"] == 55


def test_a_held_run_is_idle_until_it_is_resumed(here, capsys):
    run = make_run(here)
    event(run, "submit", 0, "submit", None)
    attempt(run, 1, 10, 50, (1, 30), decision="hold", cause="crash")
    event(run, "submit", 80, "submit", None)
    attempt(run, 2, 90, 130, (31, 50), decision="done", cause="completed")
    write_json(run.result, {"status": "completed", "global_step": 50})
    (found,) = reported(capsys, "--json")["runs"]
    assert (found["seconds"]["idle"], found["seconds"]["queue"]) == (30, 20)


def test_the_text_is_a_table_with_a_column_for_each_run(requeued, here, capfd):
    make_run(here, "20260102", "other")
    assert main(["report", "tiny", "other", "--metric", "eval_accuracy"]) == 0
    printed = capfd.readouterr()
    assert "tiny 20260101: completed, 2 attempts, 10 steps redone, 1 min 40 s" in printed.out
    assert "queue" in printed.out and "20.0%" in printed.out
    assert ", mfu nan%, 9200 tokens/s\n" in printed.out
    assert "eval_accuracy, largest first\n   1           0.5  tiny 20260101" in printed.out
    assert printed.err == f"page {requeued.path.relative_to(here)}/report.html\n"


def test_the_page_has_plots_and_no_external_resource(requeued, capsys):
    assert main(["report"]) == 0
    page = (requeued.path / "report.html").read_text()
    assert page.count("<svg") == 2
    assert "<td>n1, n2</td>" in page and "<td>preemption</td>" in page
    assert not any(word in page for word in (' src="', "@import", 'href="http'))
    resume = "make resume RUN=20260101 SET=&#34;train.epochs=...&#34;"
    assert f"checkpoint  none\nresume      {resume}\n\nname: tiny" in page
    assert "<!-- training -->" in page and "<!-- held-out -->" in page  # the legends
    assert "Ranking" not in page


def drawn(run, *values):
    """The page of a run with these values of a metric."""
    lines = [{"step": step, "train_x": value} for step, value in enumerate(values)]
    run.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["report"]) == 0
    return (run.path / "report.html").read_text()


def test_no_point_rules_a_chart(requeued):
    assert "10^{" not in drawn(requeued, *range(10))
    for outlier in (1e6, -1e6):
        assert "10^{5}" in drawn(requeued, outlier, *range(10))


def test_hostile_names_files_and_variables_do_nothing(here, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "that of a notebook")
    run = make_run(here, "20260101", "<b>x$")
    odd = f'"x\\u001b\\ud800": 2, "train_nan": NaN, "eval_loss": 1{"0" * 400}'
    run.metrics.write_text(f'{{"step": 1, "train_<i>$^": 1.0, {odd}}}\n')
    (here / "matplotlibrc").write_text("text.usetex: True\n")  # would run latex
    done = run_files.kit("report", python=[sys.executable, "-P"])
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    page = (run.path / "report.html").read_text()
    assert "&lt;b&gt;x$" in page and "<b>x" not in page and "<i>" not in page
    assert "NaN" not in page and "\x1b" not in page


def test_without_matplotlib_there_is_the_table_and_a_line_that_helps(requeued, capfd, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["report"]) == 0
    printed = capfd.readouterr()
    assert (
        "no page: " in printed.err and "matplotlib (extra report of slurm-job-kit)" in printed.err
    )
    assert printed.err.endswith(f"hint: {sys.executable} -m pip install matplotlib\n")
    assert "goodput" in printed.out
    assert not (requeued.path / "report.html").exists()
    assert main(["report", "--out", "page.html"]) == 2


def test_a_broken_matplotlib_is_named_with_its_extra_in_one_line(requeued, here):
    (here / "matplotlib.py").write_text("raise AttributeError('_ARRAY_API')")
    done = run_files.kit("report")
    assert (done.returncode, "goodput" in done.stdout) == (0, True)
    line, hint = done.stderr.splitlines()
    assert "extra report of slurm-job-kit" in line and "_ARRAY_API" in line
    assert hint.endswith("pip install --force-reinstall matplotlib jinja2")


def test_a_directory_that_refuses_the_page_leaves_the_text(requeued, capfd):
    (requeued.path / "report.html").mkdir()
    assert main(["report", "tiny"]) == 0
    printed = capfd.readouterr()
    assert "goodput" in printed.out and "--out PATH" in printed.err
    assert main(["report", "tiny", "--out", str(requeued.path / "none/x.html")]) == 1


def test_a_metric_that_no_run_has_names_those_that_there_are(requeued, capsys):
    assert main(["report", "tiny", "--metric", "eval_nix"]) == 2
    assert "they have eval_accuracy" in capsys.readouterr().err


def test_make_takes_several_runs():
    assert make_words.words_of("report", {"KIT_TYPED": "RUN=a\\ b"}) == ["report", "a", "b"]
