"""Fixtures of the commands' tests: a working directory without Slurm, with it, with a successor."""

import os

import pytest

from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.rundir import write_json
from slurm_job_kit.jobs.runs import check, lookup
from tests.unit.commands.commands_kit import TINY


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory with a spec, a runs root, and no Slurm."""
    for name in [name for name in os.environ if name.startswith(("SLURM_", "KIT_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("KIT_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.delenv("MODULEPATH", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(TINY)
    return tmp_path


@pytest.fixture
def slurm(here, fake_slurm, monkeypatch):
    """The same working directory with Slurm's clients; the check of a run finds nothing.

    tests/unit/runs/test_check.py has the check itself, which takes seconds.
    """
    monkeypatch.setattr(check, "build_parts", lambda *_: [])
    return fake_slurm


@pytest.fixture
def guarded(slurm, capsys):
    """`guarded(first, second)`: a run whose job 4711 has successor 4712, in these two states."""
    assert main(["submit", "tiny.yaml"]) == 0
    (run,) = lookup.all_runs()
    write_json(run.successor, {"job_id": "4712", "after": "4711", "reason": "because"})

    def states(first, second):
        slurm.set_state("4711", first)
        slurm.set_state("4712", second)
        capsys.readouterr()
        return run

    return states
