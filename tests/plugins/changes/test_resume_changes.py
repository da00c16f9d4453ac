"""A resume with other code, from an older checkpoint, of a complete run; a submit from a state."""

import os
import shutil
import sys

import pytest

from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.base import installation
from slurm_job_kit.jobs.base.files import append_jsonl, read_json, read_jsonl
from slurm_job_kit.jobs.commands import local
from slurm_job_kit.jobs.contract import records
from slurm_job_kit.jobs.contract.records.ended import read_attempts
from slurm_job_kit.jobs.contract.records.frozen import Provenance, SpecChange
from slurm_job_kit.jobs.runs import code_snapshot, evidence, fact_reader, freeze, lookup
from tests.core import run_files
from tests.core.fake_slurm import SBATCH
from tests.core.run_files import make_checkpoint, make_code, make_run, write_json


@pytest.fixture
def run(slurm, here, monkeypatch):
    """A run with code, two checkpoints and one attempt that crashed; Slurm takes its jobs."""
    run_dir = make_run(here)
    checkout = make_code(here, run_dir)
    run_dir.submitit.mkdir()
    name = run_dir.code.resolve().name
    records.write(run_dir.provenance, freeze.provenance(checkout, name))
    monkeypatch.setattr(installation, "ROOT", checkout)
    for step in (10, 20):
        make_checkpoint(run_dir, step)
    run_files.recorded(run_dir, checkpoint="step-00000020", decision="hold")
    return run_dir


@pytest.fixture
def completed(run):
    """The same run after its last step."""
    done = run_files.attempt({"outcome": "completed"}, cause="completed", decision="done")
    append_jsonl(run.attempts, done)
    write_json(run.result, {"status": "completed", "global_step": 20})
    return run


def state(run):
    """All that a refused or failed resume must leave as it was."""
    names = sorted(path.name for path in run.checkpoints.iterdir())
    files = (run.provenance, run.spec, run.overrides, run.result)
    texts = [path.read_text() if path.exists() else None for path in files]
    decisions = [each.decision for each in read_attempts(run)]
    return names, texts, os.readlink(run.code), decisions


def mend(here):
    (here / "checkout/model.py").write_text("x = 2\n")


def test_before_the_first_checkpoint_other_code_needs_no_yes(run, here, slurm):
    """No step is kept that the old code did."""
    for path in run.checkpoints.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    mend(here)
    assert main(["resume", "tiny", "--code"]) == 0
    assert (run.code / "model.py").read_text() == "x = 2\n"


def test_a_resume_that_slurm_refuses_leaves_code_checkpoints_and_spec(run, here, slurm):
    mend(here)
    before = state(run)
    slurm.refuse(7)
    words = ["--code", "--checkpoint=10", "train.lr=0.3", "--yes"]
    assert main(["resume", "tiny", *words]) == 1
    assert state(run) == before


def test_nothing_is_switched_before_the_first_attempt_of_a_resume_here(
    run, here, monkeypatch, capsys
):
    mend(here)
    before, states = state(run), []

    def run_here(run_dir):
        words = ["resume", "tiny", "--cluster=local", "--code", "--yes", "--checkpoint=10"]
        assert main(words) == 2
        states.append(state(run))
        return 0

    monkeypatch.setattr(local, "run_here", run_here)
    assert main(["resume", "tiny", "--cluster=local"]) == 0
    assert "is running as local-" in capsys.readouterr().err
    assert states == [before]


def test_a_complete_run_gets_more_epochs_after_a_yes(completed, slurm, capsys):
    before = state(completed)
    assert main(["resume", "tiny", "train.epochs=3", "train.schedule=cosine"]) == 2
    shown = capsys.readouterr().err
    assert "train.epochs: 1 -> 3\n" in shown
    assert state(completed) == before
    assert main(["resume", "tiny", "train.epochs=3", "--yes"]) == 0
    assert not completed.result.exists()
    facts = fact_reader.read_newest(completed)
    assert not facts.is_completed
    assert facts.last is not None
    assert (facts.last.decision, facts.last.cause) == ("hold", "completed")


def test_a_complete_run_whose_batch_script_was_killed_gets_more_epochs(completed, slurm):
    completed.result.unlink()
    attempt_dir = run_files.opened(completed, 2, job_id="6")
    write_json(attempt_dir.outcome, {"status": "completed", "global_step": 20})
    assert main(["resume", "tiny", "train.epochs=3", "--yes"]) == 0
    facts = fact_reader.read_newest(completed)
    assert not completed.result.exists() and not evidence.is_training_complete(facts)
    assert facts.last is not None and (facts.last.attempt, facts.last.decision) == (2, "hold")


@pytest.mark.parametrize(
    ("name", "step"), [("tiny", 20), ("20260101@step-10", 10), ("tiny@10", 10)]
)
def test_a_submit_from_a_run_begins_with_a_copy_of_its_checkpoint(run, slurm, name, step):
    assert main(["submit", "tiny.yaml", "slurm.nodes=1", "--from", name]) == 0
    new = next(each for each in lookup.all_runs() if each != run)
    copied = f"step-{step:08d}"
    assert [path.name for path in new.checkpoints.iterdir() if path.is_dir()] == [copied]
    known = records.read(Provenance, new.provenance)
    assert known is not None and known.origin is not None
    assert (known.origin.run_id, known.origin.checkpoint) == (run.run_id, copied)
    assert known.origin.code == code_snapshot.digest_in(run.code.resolve().name)
    (accepted,) = records.read_lines(SpecChange, new.changes)
    assert accepted.spec_sha256
    assert not new.metrics.exists()


def test_no_command_queues_a_run_that_a_submit_from_another_still_fills(run, slurm):
    """Its checkpoint is copied before sbatch: a resume would find no job, and begin without it."""
    slurm.install("sbatch", SBATCH)
    environ = f"PATH={os.environ['PATH']} PYTHONPATH={run_files.REPOSITORY}"
    resume = f'{environ} {sys.executable} -m slurm_job_kit.jobs resume "$run"'
    once = f'[ -e "$FAKE_SLURM/resume" ] || {resume} >"$FAKE_SLURM/resume" 2>&1'
    slurm.install("sbatch", f"for run; do :; done\n{once}\n{SBATCH}", when="*ddp.sbatch*")
    assert main(["submit", "tiny.yaml", "slurm.nodes=1", "--from", "tiny"]) == 0
    assert "is submitting or cancelling it" in (slurm.folder / "resume").read_text()
    assert slurm.submitted == 1


def test_a_submit_from_a_run_of_another_spec_wants_a_yes(run, slurm, capsys):
    words = ["submit", "tiny.yaml", "slurm.nodes=1", "train.lr=0.3", "slurm.time=9:00:00"]
    assert main([*words, "--from", "tiny"]) == 2
    shown = capsys.readouterr().err
    assert "train.lr: 0.1 -> 0.3\n" in shown and "slurm.time" not in shown
    assert lookup.all_runs() == [run]
    assert main([*words, "--from", "tiny", "--yes"]) == 0
    assert len(lookup.all_runs()) == 2


def test_a_change_that_leaves_no_step_is_refused(run, slurm, capsys):
    before, changed = state(run), "train.max_steps 19 leaves no step after the 20 that are done"
    assert main(["resume", "tiny", "train.max_steps=19", "--yes"]) == 2
    assert changed in capsys.readouterr().err
    words = ["submit", "tiny.yaml", "slurm.nodes=1", "--yes"]
    assert main([*words, "train.max_steps=20", "--from", "tiny"]) == 2
    assert "train.max_steps 20 leaves no step" in capsys.readouterr().err
    assert state(run) == before and lookup.all_runs() == [run] and slurm.submitted == 0
    assert main([*words, "train.max_steps=20", "--from", "tiny@10"]) == 0
    assert main(["resume", run.run_id, "train.max_steps=20", "--yes"]) == 0


def test_a_complete_run_goes_on_from_an_older_checkpoint_with_all_its_records(completed):
    assert main(["resume", "tiny", "--checkpoint", "10"]) == 0
    assert not fact_reader.read_newest(completed).is_completed
    decisions = [line["decision"] for line in read_jsonl(completed.attempts)]
    assert decisions == ["hold", "done", "hold"]
    assert not completed.result.exists() and read_json(completed.spec)["name"] == "tiny"
