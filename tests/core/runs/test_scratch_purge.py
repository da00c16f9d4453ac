"""Files that a scratch purge deleted are named in one line."""

import json
import shutil

import pytest

from slurm_job_kit.jobs.base.errors import UserError
from slurm_job_kit.jobs.contract.rundir import FORMAT
from slurm_job_kit.jobs.contract.spec import Spec
from slurm_job_kit.jobs.runs import fact_reader, frozen_spec, scratch_purge
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


def harm_code(run, change):
    run_files.unlock(run.code.resolve())
    (run.code / "jobs/local.py").chmod(0o600)
    change(run.code)


IN_CODE = "the frozen code has lost or changed files"


@pytest.mark.parametrize(
    ("lose", "words"),
    [
        (lambda run: run.spec.unlink(), "spec.json is gone"),
        (lambda run: run.spec.write_text(run.spec.read_text()[:40]), "spec.json: not JSON: "),
        (lambda run: harm_code(run, lambda code: shutil.rmtree(code.resolve())), IN_CODE),
        (lambda run: harm_code(run, lambda code: (code / "jobs/local.py").unlink()), IN_CODE),
        (lambda run: harm_code(run, lambda code: (code / "jobs/local.py").write_text("")), IN_CODE),
    ],
)
def test_what_cannot_be_made_anew_is_named_in_one_line_with_a_way_out(run, lose, words):
    lose(run)
    with pytest.raises(UserError, match=words) as messages:
        scratch_purge.check(run)
    first, _, hint = str(messages.value).partition("\n  hint: ")
    assert str(run.path.parent.parent) in first and "\n" not in first + hint and hint


def test_a_lost_setup_script_is_written_anew(run):
    frozen_spec.restore_setup(run)
    assert "module load x\n" in run.setup.read_text()
    run.setup.write_text("mine\n")
    frozen_spec.restore_setup(run)
    assert run.setup.read_text() == "mine\n"


def test_a_lost_plan_or_record_makes_no_attempt_begin_again(run):
    def newest(run):
        return fact_reader.read_newest(run).newest

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


@pytest.mark.parametrize("number", [None, FORMAT + 1])
def test_a_run_of_another_kit_is_named_and_never_called_damaged(run, number):
    values = json.loads(run.spec.read_text()) | {"format": number, "key_of_that_kit": 1}
    if number is None:
        del values["format"]
    run.spec.write_text(json.dumps(values))
    for read in (lambda: Spec.read(run.spec), lambda: scratch_purge.check(run)):
        with pytest.raises(UserError) as raised:
            read()
        text = str(raised.value)
        assert f"{run.path}: format {number or 'unknown'}, " in text and "damaged" not in text
        assert "hint: use the version of the kit that submitted it, or submit it again" in text
