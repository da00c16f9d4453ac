"""Files that a scratch purge deleted are named in one line."""

import shutil

import pytest

from slurm_job_kit.jobs.errors import UserError
from slurm_job_kit.jobs.runs import (
    code_snapshot,
    fact_reader,
    frozen_spec,
    interpret,
    scratch_purge,
)
from slurm_job_kit.jobs.spec import Spec
from tests.core import run_files


@pytest.fixture
def run(tmp_path):
    """A run directory with a snapshot of a checkout of two files."""
    checkout = run_files.make_kit(tmp_path / "checkout")
    run = run_files.frozen(tmp_path / "runs/x/1", Spec(setup=["module load x"]))
    (checkout / "jobs").mkdir()
    for name in ("attempt.py", "local.py"):
        (checkout / "jobs" / name).write_text(f"# {name}\n")
    run_files.freeze_code(checkout, run)
    return run


def remove_spec(run):
    run.spec.unlink()


def cut_spec(run):
    run.spec.write_text(run.spec.read_text()[:40])


def remove_code(run):
    run_files.unlock(run.code.resolve())
    shutil.rmtree(run.code.resolve())


def remove_code_file(run):
    run_files.unlock(run.code.resolve())
    (run.code / "jobs/local.py").unlink()


def change_code_file(run):
    (run.code / "jobs/local.py").chmod(0o600)
    (run.code / "jobs/local.py").write_text("import os\n")


@pytest.mark.parametrize(
    ("lose", "words"),
    [
        (remove_spec, "spec.json is gone"),
        (cut_spec, "spec.json is damaged: "),
        (remove_code, "the frozen code has lost or changed files: .* is missing"),
        (remove_code_file, "the frozen code has lost or changed files"),
        (change_code_file, "the frozen code has lost or changed files"),
    ],
)
def test_what_cannot_be_made_anew_is_named_in_one_line_with_a_way_out(run, lose, words):
    lose(run)
    with pytest.raises(UserError, match=words) as messages:
        scratch_purge.check(run)
    first, _, hint = str(messages.value).partition("\n  hint: ")
    assert str(run.path.parent.parent) in first and "\n" not in first + hint and hint


def test_a_submit_from_the_same_checkout_brings_the_code_back(run, tmp_path):
    remove_code_file(run)
    code_snapshot.take(tmp_path / "checkout", tmp_path / "runs")
    scratch_purge.check(run)


def test_a_lost_setup_script_is_written_anew(run):
    frozen_spec.mend_setup(run)
    assert "module load x\n" in run.setup.read_text()
    run.setup.write_text("mine\n")
    frozen_spec.mend_setup(run)
    assert run.setup.read_text() == "mine\n"


def newest(run):
    return interpret.newest_number(fact_reader.read_newest(run))


def test_a_lost_plan_or_record_makes_no_attempt_begin_again(run):
    for folder in ("attempt-1", "attempt-12.old", "attempt-"):
        (run.path / folder).mkdir()
    (run.path / "attempt-12.old/plan.json").write_text("{}")  # a user's copy
    assert newest(run) == 0
    run_files.opened(run, 1)
    run.attempt(10).path.mkdir()
    assert newest(run) == 1
    run_files.node(run.attempt(10), 0)
    assert newest(run) == 10
    run_files.recorded(run, attempt=11)
    assert newest(run) == 11
