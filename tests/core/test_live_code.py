"""A module that pip leads to the live repository is refused: a run has frozen code only."""

import sys

import pytest

from slurm_job_kit.jobs.contract import records
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.runs.freeze import provenance
from slurm_job_kit.trainer.errors import UserError
from slurm_job_kit.trainer.user_code import load


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with src/mylib_of_test, and a run of it that an agent has started."""
    for top in (tmp_path / "src", tmp_path / "runs/x/1/code/src"):
        (top / "mylib_of_test").mkdir(parents=True)
        (top / "mylib_of_test/__init__.py").write_text("")
        (top / "mylib_of_test/nets.py").write_text("def net(): ...\n")
    run = RunDir(tmp_path / "runs/x/1")
    records.write(run.provenance, provenance(tmp_path, "x"))
    monkeypatch.setenv("KIT_RUN_DIR", str(run.path))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("mylib_of_test")]:
        del sys.modules[name]


def test_a_module_of_the_live_repository_is_refused_with_the_way_out(repository, monkeypatch):
    monkeypatch.syspath_prepend(str(repository / "src"))
    setup = r"setup: \['export PYTHONPATH=\$PWD/src:\$PYTHONPATH'\]"
    with pytest.raises(UserError, match=rf"(?s)src/mylib_of_test/nets.py is not frozen.*{setup}"):
        load("train.model", "mylib_of_test.nets:net")


def test_a_frozen_module_is_taken(repository, monkeypatch):
    monkeypatch.syspath_prepend(str(repository / "runs/x/1/code/src"))
    assert callable(load("train.model", "mylib_of_test.nets:net"))
