"""Submit and resume check a run before it is queued, unless the user says --no-check."""

import pytest

from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.contract.problems import Problem
from slurm_job_kit.jobs.contract.spec import Spec
from slurm_job_kit.jobs.plugins import PLUGINS
from slurm_job_kit.jobs.plugins.check import hooks as check
from slurm_job_kit.jobs.runs import lookup
from tests.plugins.changes.test_resume_changes import mend, state
from tests.plugins.changes.test_resume_changes import run as run

CHECK = PLUGINS["check"]


@pytest.fixture
def slurm(slurm, monkeypatch):
    """The fixture of the core leaves the check out."""
    monkeypatch.setitem(PLUGINS, "check", CHECK)
    return slurm


def wrong_model(*_):
    return Problem(("train", "model"), "there is no module mine")


@pytest.mark.parametrize("cluster", ["slurm", "local"])
def test_a_run_with_a_mistake_in_its_parts_does_not_begin(slurm, monkeypatch, capsys, cluster):
    monkeypatch.setattr(check, "build_parts", wrong_model)
    assert main(["submit", "tiny.yaml", "train.model=mine:net", "--cluster", cluster]) == 2
    expected = "error: override train.model=mine:net: train.model: there is no module mine\n"
    assert capsys.readouterr().err == expected
    assert lookup.all_runs() == [] and slurm.submitted == 0
    if cluster == "slurm":
        assert main(["submit", "tiny.yaml", "--no-check"]) == 0


@pytest.mark.parametrize(
    ("words", "seen"),
    [
        (["--code"], ("x = 2\n", Spec().train.model)),
        (["train.model=typo:net"], ("x = 1\n", "typo:net")),
    ],
)
def test_a_mistake_in_what_changed_is_found_before_the_queue(
    run, here, slurm, monkeypatch, capsys, words, seen
):
    mend(here)
    checked = []

    def build_parts(run_dir, spec, *_):
        checked.append(((run_dir.code / "model.py").read_text(), spec.train.model))
        return Problem(("train", "model"), "no module named typo", frames=("model.py:1: x",))

    monkeypatch.setattr(check, "build_parts", build_parts)
    before = state(run)
    assert main(["resume", "tiny", "--yes", *words]) == 2
    assert "train.model: no module named typo\n  model.py:1: x\n" in capsys.readouterr().err
    assert state(run) == before and slurm.submitted == 0
    assert checked == [seen]
    assert main(["resume", "tiny", "--yes", "--no-check", *words]) == 0
    assert len(checked) == 1


def test_what_did_not_change_is_not_checked_again(run, monkeypatch):
    monkeypatch.setattr(check, "build_parts", lambda *_: pytest.fail("checked"))
    assert main(["resume", "tiny", "slurm.time=9:00:00"]) == 0
