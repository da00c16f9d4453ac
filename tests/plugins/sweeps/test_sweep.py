"""The command sweep queues one array; resume continues its points."""

import os
import shutil
from pathlib import Path
from unittest import mock

import pytest

from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.base.errors import UserError
from slurm_job_kit.jobs.commands import resume
from slurm_job_kit.jobs.contract import records
from slurm_job_kit.jobs.contract.records.queued import Submission
from slurm_job_kit.jobs.contract.spec import Spec
from slurm_job_kit.jobs.plugins.sweeps.record import points_of
from slurm_job_kit.jobs.runs import lookup, run_lock
from slurm_job_kit.jobs.slurm.sbatch import sbatch_argv
from tests.core.run_files import answered, write_json

GRID = ("sweep", "tiny.yaml", "train.seed=0,1,2")


@pytest.fixture
def made(slurm, capsys):
    """A sweep of three points, whose tasks wait; and a function for the state of a task."""
    assert main([*GRID, "sweep.max_parallel=2.0"]) == 0
    (sweep,) = Path("runs").resolve().glob("*/sweep-*")
    for number in range(3):
        slurm.set_state(f"4711_{number}", "PENDING")
    capsys.readouterr()
    return sweep


def end(made, slurm, **statuses):
    """Let points end: `p0="completed"`."""
    runs = points_of(made)
    for point, status in statuses.items():
        number = int(point[1:])
        slurm.set_state(f"4711_{number}", "COMPLETED" if status == "completed" else "FAILED")
        write_json(runs[number].result, {"status": status})
        runs[number].metrics.write_text(f'{{"step": 1, "eval_loss": {1.0 - number / 10}}}\n')
    return runs


def test_the_points_are_one_array_with_a_limit_and_each_has_its_own_run(made, slurm):
    assert slurm.submitted == 1
    assert "--array=0-2%2" in slurm.argv and slurm.argv[-1] == str(made)
    assert {f"--chdir={made}", "--output=points/%a/job.log"} <= set(slurm.argv)
    runs = points_of(made)
    assert [Spec.read(run.spec).train.seed for run in runs] == [0, 1, 2]
    assert len({run.code.resolve() for run in runs}) == 1 and len(set(runs)) == 3
    assert made.stat().st_mode & 0o777 == 0o700  # dir_mode, whatever the umask
    assert lookup.find("4711_1") == runs[1]
    # The successor of a point must not queue the whole array again.
    record = records.read(Submission, runs[1].submission)
    argv = tuple(sbatch_argv(Spec.read(runs[1].spec), runs[1]))
    assert record == Submission(argv, "4711_1", os.getuid())


@pytest.mark.plugin("look")
def test_a_sweep_is_found_by_directory_id_and_array_and_is_no_run(made, capsys):
    for text in (str(made), made.name, "4711"):
        assert lookup.find_all(text) == points_of(made)
        assert main(["logs", text]) == 2
        assert "has 3 runs, and this command takes one" in capsys.readouterr().err


def test_resume_takes_the_sweep_with_its_limit(made, slurm):
    runs = end(made, slurm, p0="completed", p1="held")
    runs[1].cancelled.write_text("x")
    assert main(["resume", "4711"]) == 0
    assert "--array=1%2" in slurm.argv and not runs[1].cancelled.exists()


def test_a_refused_resume_leaves_the_points_as_they_were(made, slurm):
    runs = end(made, slurm, p1="cancelled")
    runs[1].cancelled.write_text("x")
    slurm.refuse(1)
    assert main(["resume", made.name]) == 1
    assert runs[1].cancelled.read_text() == "x"


def test_cancel_marks_each_living_point_and_calls_scancel_once(made, slurm):
    runs = end(made, slurm, p0="completed")
    slurm.set_state("4711_1", "RUNNING")
    assert main(["cancel", made.name]) == 0
    assert slurm.cancelled == ["4711_1 4711_2"]
    assert [run.cancelled.exists() for run in runs] == [False, True, True]
    assert not runs[1].result.exists() and "cancelled" in runs[2].result.read_text()
    assert main(["cancel", made.name]) == 2


@pytest.mark.plugin("look")
def test_a_point_whose_directory_was_deleted_keeps_no_command_from_the_others(made, slurm, capsys):
    gone, *left = end(made, slurm, p1="held", p2="completed")
    shutil.rmtree(gone.path)
    assert main(["report", made.name]) == 0
    ranked = capsys.readouterr().out.splitlines()[-2:]
    assert ["point 2" in ranked[0], "point 1" in ranked[1]] == [True, True]
    page = (made / "report.html").read_text()
    assert "\n".join(ranked).strip() in page and "Attempts of 2026" not in page
    assert "<p><span" in page and "</span>point 1  train.seed=1: held" in page
    assert main(["status", made.name, "--json"]) == 0
    rows = answered(capsys.readouterr().out)["runs"]
    assert rows[0]["state"] == "unreadable" and "was deleted" in rows[0]["reason"]
    assert main(["resume", made.name]) == 0
    assert "--array=1%2" in slurm.argv
    slurm.set_state("4711_1", "PENDING")
    assert main(["cancel", made.name]) == 0
    assert left[0].cancelled.exists()


def test_a_dry_run_lists_the_points_and_writes_nothing(slurm, here, capsys):
    assert main([*GRID, "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "0  train.seed=0"
    assert os.listdir(here / "runs") == [".code"]  # of the fixture
    assert not slurm.calls
    assert main([*GRID, "--dry-run", "--cluster", "local"]) == 0
    assert "--array" not in capsys.readouterr().out


def test_a_queued_array_stays_whatever_happens_then(slurm, monkeypatch):
    monkeypatch.setattr(run_lock, "release", mock.Mock(side_effect=KeyboardInterrupt))
    assert main(GRID) == 130
    assert len(lookup.find_all("4711")) == len(lookup.all_runs()) == 3


def test_a_refused_array_leaves_nothing(slurm, here):
    slurm.refuse(1)
    assert main(GRID) == 1
    assert not [*lookup.children()]
    assert not list((here / "runs").glob("tiny/*"))


@pytest.mark.parametrize(
    ("codes", "begun", "code"),
    [
        ([1, 0, 0], 3, 1),
        ([0, 130, 0], 2, 130),
        ([UserError("another command queues it"), 0, 0], 3, 1),
        ([0, OSError("disk"), 0], 3, 1),
    ],
)
def test_here_a_failed_point_ends_nothing_and_ctrl_c_ends_the_sweep(
    here, monkeypatch, codes, begun, code
):
    """The agents of a run are started in tests/local; here only their exit codes matter."""
    ended = []

    def run(run_dir, *_):
        ended.append(run_dir)
        code = codes[len(ended) - 1]
        if isinstance(code, Exception):
            raise code
        return code

    monkeypatch.setattr(resume, "run", run)
    assert main([*GRID, "--cluster", "local", "--no-check"]) == code
    (sweep,) = Path("runs").resolve().glob("*/sweep-*")
    assert ended == points_of(sweep)[:begun]


@pytest.mark.plugin("report")
@pytest.mark.parametrize("name", ["eval_loss", "eval_own"])
def test_a_sweep_on_this_machine_ends_with_its_best_point(here, monkeypatch, capsys, name):
    def run(run_dir, *_):
        accuracy = 0.9 if run_dir.path.name.endswith("1") else 0.8
        run_dir.metrics.write_text(f'{{"step": 1, "{name}": {accuracy}}}\n')
        return 0

    monkeypatch.setattr(resume, "run", run)
    assert main([*GRID, "--cluster", "local", "--no-check"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    best = "best: point 0, train.seed=0: held-out loss 0.8"
    assert (last == best) == (name == "eval_loss") and ("best" in last) == (last == best)


def test_different_requests_are_refused(slurm, capsys):
    assert main(["sweep", "tiny.yaml", "slurm.nodes=1,2", "train.seed=0,1"]) == 2
    assert "an array is one job" in capsys.readouterr().err and not slurm.submitted
