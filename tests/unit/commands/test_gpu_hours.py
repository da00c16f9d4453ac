"""The GPU hours before a submit, and the confirmation above the user's limit."""

import os
import pty
import subprocess
import sys

import pytest

from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.commands import gpu_hours
from slurm_job_kit.jobs.errors import UserError
from slurm_job_kit.jobs.runs import lookup
from slurm_job_kit.jobs.spec import Slurm
from tests.unit.run_files import REPOSITORY

# 2 nodes x 8 GPUs x 2 h
LARGE = ["tiny.yaml", "slurm.gpus_per_node=8", "slurm.time=2:00:00", "--no-check"]


@pytest.mark.parametrize(
    ("section", "jobs", "text"),
    [
        (Slurm(nodes=2, gpus_per_node=8, time="2:00:00"), 1, "32 GPU hours: 2 nodes x 8 GPUs"),
        (Slurm(nodes=4, cpus_per_task=16, time="0:30:00"), 1, "32 core hours: 4 nodes x 16 cores"),
        (Slurm(time="1-0", sbatch_args={"gres": "gpu:a100:4"}), 1, "96 GPU hours: 1 node x 4 GPUs"),
        (Slurm(sbatch_args={"gres": "gpu,tmp:500G"}), 1, "1 GPU hour: 1 node x 1 GPU"),
        (Slurm(sbatch_args={"gres": "gres/gpu:2"}), 1, "2 GPU hours: 1 node x 2 GPUs"),
        (Slurm(sbatch_args={"gres": "gpu:h100=4"}), 1, "4 GPU hours: 1 node x 4 GPUs"),
        (Slurm(sbatch_args={"tres_per_node": "cpu=2,gres/gpu:h100:3"}), 1, "3 GPU hours"),
        (Slurm(sbatch_args={"tres-per-task": "gres/gpu=8"}), 1, "8 GPU hours"),
        (Slurm(gpus_per_node=2), 9, "18 GPU hours: 9 jobs x 1 node x 2 GPUs"),
    ],
)
def test_what_a_start_asks_for(section, jobs, text):
    assert text in gpu_hours.format_request(section, jobs)


def test_submit_prints_the_hours_and_leaves_json_alone(slurm, capfd):
    assert main(["submit", *LARGE, "--json"]) == 0
    printed = capfd.readouterr()
    assert "32 GPU hours" in printed.err and "each restart again" in printed.err
    assert printed.out.startswith("{") and printed.out.count("\n") == 1


def test_a_dry_run_shows_the_hours_and_asks_nothing(slurm, monkeypatch, capfd):
    monkeypatch.setenv(gpu_hours.LIMIT, "1")
    assert main(["submit", *LARGE[:-1], "--dry-run"]) == 0
    assert "32 GPU hours" in capfd.readouterr().err


def test_above_the_limit_a_submit_without_a_terminal_needs_yes(slurm, monkeypatch, capfd):
    monkeypatch.setenv(gpu_hours.LIMIT, "31.9")
    assert main(["submit", *LARGE]) == 2
    assert "--yes (make: YES=1)" in capfd.readouterr().err
    assert slurm.submitted == 0 and lookup.all_runs() == []
    assert main(["submit", *LARGE, "--yes"]) == 0
    monkeypatch.setenv(gpu_hours.LIMIT, "32")
    assert main(["submit", *LARGE]) == 0
    assert slurm.submitted == 2


def test_a_refused_resume_leaves_the_run_as_it_was(slurm, monkeypatch, capfd):
    assert main(["submit", *LARGE]) == 0
    slurm.set_state("4711", "CANCELLED")
    (run,) = lookup.all_runs()
    before = run.spec.read_text()
    monkeypatch.setenv(gpu_hours.LIMIT, "40")
    words = ["resume", "tiny", "slurm.time=3:00:00"]
    assert main(words) == 2
    assert "48 GPU hours are above" in capfd.readouterr().err
    assert run.spec.read_text() == before and slurm.submitted == 1
    assert main([*words, "--yes"]) == 0
    assert slurm.submitted == 2


@pytest.mark.parametrize("text", ["many", "-1", "nan"])
def test_a_limit_that_is_no_number_is_refused(text):
    with pytest.raises(UserError, match="no number"):
        gpu_hours.limit_of({gpu_hours.LIMIT: text})


@pytest.mark.parametrize(("typed", "code"), [(b"y\n", 0), (b"\n", 1), (b"no\n", 1)])
def test_on_a_terminal_the_user_is_asked(typed, code):
    """In a process of its own, because pytest has no terminal."""
    script = """
from slurm_job_kit.jobs.commands import gpu_hours
from slurm_job_kit.jobs.errors import FailedError
from slurm_job_kit.jobs.spec import Slurm
try:
    gpu_hours.confirm([Slurm(gpus_per_node=8)], False)
except FailedError:
    raise SystemExit(1)
"""
    ours, theirs = pty.openpty()
    env = os.environ | {gpu_hours.LIMIT: "1", "PYTHONPATH": str(REPOSITORY)}
    os.write(ours, typed)
    with subprocess.Popen(
        [sys.executable, "-c", script], env=env, stdin=theirs, stderr=theirs
    ) as process:
        assert process.wait(60) == code
    printed = os.read(ours, 4096).decode()
    os.close(ours)
    os.close(theirs)
    assert "Submit? [y/N]" in printed
