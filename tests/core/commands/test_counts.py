"""What the commands cost, in counts: imported modules and calls of Slurm."""

import os
import subprocess
import sys

import pytest

from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.base import installation
from slurm_job_kit.jobs.runs import lookup
from tests.core import run_files
from tests.core.run_files import REPOSITORY

HEAVY = {"torch", "numpy", "sklearn", "sympy"}
RECORDS = f"{installation.NAME}.jobs.contract.records"
OF_RANKS = {f"{RECORDS}.nodes", f"{RECORDS}.training"}
OF_SUBMIT = {"yaml", "submitit", "asyncio"}
NUM_RUNS = 4
LOOK = pytest.mark.plugin("look")


def imported_by(*words):
    """The modules that Python imports for a command line."""
    command = [sys.executable, "-X", "importtime", *words]
    env = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}


@pytest.mark.parametrize(
    ("words", "unneeded", "most"),
    [
        (["--help"], HEAVY | OF_SUBMIT | {"dataclasses"}, 79),
        pytest.param(["status"], HEAVY | OF_SUBMIT, 182, marks=LOOK),
        pytest.param(["logs"], HEAVY | OF_SUBMIT, 179, marks=LOOK),
        (["submit", "tiny.yaml", "--no-check"], HEAVY | OF_RANKS, 314),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_command_imports_only_what_it_needs(slurm, words, unneeded, most):
    assert main(["submit", "tiny.yaml", "--no-check"]) == 0
    run_files.opened(lookup.find("tiny")).rank_log(0).write_text("step 1\n")
    # A distribution's Python imports modules of its own at each start.
    imported = imported_by("-m", "slurm_job_kit.jobs", *words) - imported_by("-c", "pass")
    assert "slurm_job_kit.jobs.base.installation" in imported
    assert imported.isdisjoint(unneeded)
    assert len(imported) <= most


@pytest.fixture
def runs(slurm, tmp_path, monkeypatch, capsys):
    """Runs whose jobs are queued. The repository has only the files that each kit has."""
    monkeypatch.setattr(installation, "ROOT", run_files.make_kit(tmp_path / "repository"))
    for number in range(NUM_RUNS):
        slurm.install("sbatch", f"echo Submitted batch job {100 + number}")
        assert main(["submit", "tiny.yaml", "--no-check"]) == 0
        slurm.set_state(str(100 + number), "PENDING")
    capsys.readouterr()
    return lookup.all_runs()


@LOOK
def test_status_asks_slurm_once_for_all_runs_and_not_where_all_have_ended(runs, slurm, capsys):
    before = len(slurm.calls)
    assert main(["status"]) == 0
    assert capsys.readouterr().out.count("waiting in the queue") == NUM_RUNS
    assert [call.partition(" ")[0] for call in slurm.calls[before:]] == ["squeue"]
    for run in runs:
        run.result.write_text('{"status": "held", "reason": "x"}')
    assert main(["status"]) == 0
    assert len(slurm.calls) == before + 1
