"""Queueing a run: sbatch gets the frozen script, and the run directory records the job."""

import errno
import os
import signal

import pytest

from slurm_job_kit.jobs.commands import queue
from slurm_job_kit.jobs.config.load import LoadedSpec
from slurm_job_kit.jobs.errors import FailedError
from slurm_job_kit.jobs.records.queued import Submission
from slurm_job_kit.jobs.rundir import Timeline, read_json, read_jsonl
from slurm_job_kit.jobs.runs import lookup
from slurm_job_kit.jobs.runs.freeze import freeze
from slurm_job_kit.jobs.slurm.sbatch import sbatch_argv
from slurm_job_kit.jobs.spec import Spec


@pytest.fixture
def spec(tmp_path, monkeypatch):
    """A spec; the test's own folder is the runs root."""
    monkeypatch.setenv("KIT_RUNS", str(tmp_path / "runs"))
    return Spec(name="first")


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "repository"
    (folder / "slurm").mkdir(parents=True)
    (folder / "slurm" / "ddp.sbatch").write_text("#!/bin/sh\n")
    return folder


@pytest.fixture
def sbatch(fake_slurm):
    """Slurm's clients, which record sbatch's arguments and environment."""
    return fake_slurm


def queued(spec, repository):
    with freeze(LoadedSpec(spec, "name: first\n"), repository) as run_dir:
        return queue.queue(spec, run_dir, Submission()), run_dir


def test_a_submitted_run_records_its_job_and_is_found_by_its_id(spec, sbatch, repository):
    _, run_dir = queued(spec, repository)
    argv = sbatch_argv(spec, run_dir)
    assert sbatch.argv == argv[1:]
    assert read_json(run_dir.submission) == {"argv": argv, "job_id": "4711", "uid": os.getuid()}
    assert lookup.find("4711") == run_dir
    events = [event["event"] for event in read_jsonl(run_dir.timeline("submit"))]
    assert events == ["freeze", "submit"]


def test_a_job_that_cannot_be_recorded_is_cancelled(spec, sbatch, repository, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(lookup, "remember", full)
    with pytest.raises(FailedError, match="job 4711 was cancelled.*No space left"):
        queued(spec, repository)
    assert sbatch.cancelled == ["4711"]


def full():
    raise OSError(errno.ENOSPC, "No space left on device")


def ctrl_c():
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("happens", [full, ctrl_c])
def test_the_run_of_a_queued_job_stays_if_its_last_event_fails(
    spec, sbatch, repository, monkeypatch, happens
):
    event = Timeline.event

    def disturbed(self, name, **fields):
        if name == "submit":
            happens()
        event(self, name, **fields)

    monkeypatch.setattr(Timeline, "event", disturbed)
    job_id, run_dir = queued(spec, repository)
    assert read_json(run_dir.submission)["job_id"] == job_id


def test_ctrl_c_after_sbatch_still_records_the_job(spec, sbatch, repository, monkeypatch):
    remember = lookup.remember
    monkeypatch.setattr(lookup, "remember", lambda *args: ctrl_c() or remember(*args))
    job_id, run_dir = queued(spec, repository)
    assert lookup.find(job_id) == run_dir
