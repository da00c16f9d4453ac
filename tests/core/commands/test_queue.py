"""Queueing a run: sbatch gets the frozen script, and the run directory records the job."""

import errno
import os
import signal

import pytest

from slurm_job_kit.jobs.base.errors import FailedError
from slurm_job_kit.jobs.base.files import read_json, read_jsonl
from slurm_job_kit.jobs.commands import queue
from slurm_job_kit.jobs.config.loaded import LoadedSpec
from slurm_job_kit.jobs.contract.records.queued import Submission
from slurm_job_kit.jobs.contract.records.timeline import Timeline
from slurm_job_kit.jobs.contract.spec import Spec
from slurm_job_kit.jobs.runs import lookup
from slurm_job_kit.jobs.runs.freeze import freeze
from slurm_job_kit.jobs.slurm.sbatch import sbatch_argv
from tests.core import run_files


@pytest.fixture
def queued(tmp_path, fake_slurm, monkeypatch):
    """Queues a run below the test's own folder; returns its spec, job id and directory."""
    monkeypatch.setenv("KIT_RUNS", str(tmp_path / "runs"))
    repository = run_files.make_kit(tmp_path / "repository")

    def queue_run():
        spec = Spec(name="first")
        with freeze(LoadedSpec(spec, "name: first\n"), repository) as run_dir:
            return spec, queue.queue(spec, run_dir, Submission()), run_dir

    return queue_run


def test_a_submitted_run_records_its_job_and_is_found_by_its_id(queued, fake_slurm):
    spec, _, run_dir = queued()
    argv = sbatch_argv(spec, run_dir)
    assert fake_slurm.argv == argv[1:]
    assert read_json(run_dir.submission) == {"argv": argv, "job_id": "4711", "uid": os.getuid()}
    assert lookup.find("4711") == run_dir
    events = [event["event"] for event in read_jsonl(run_dir.timeline("submit"))]
    assert events == ["freeze", "submit"]


def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def ctrl_c(*_):
    os.kill(os.getpid(), signal.SIGINT)


def test_a_job_that_cannot_be_recorded_is_cancelled(queued, fake_slurm, monkeypatch):
    monkeypatch.setattr(lookup, "remember", full)
    with pytest.raises(FailedError, match="job 4711 was cancelled.*No space left"):
        queued()
    assert fake_slurm.cancelled == ["4711"]


@pytest.mark.parametrize("happens", [full, ctrl_c])
def test_the_run_of_a_queued_job_stays_if_its_last_event_fails(queued, monkeypatch, happens):
    event = Timeline.event

    def disturbed(self, name, **fields):
        if name == "submit":
            happens()
        event(self, name, **fields)

    monkeypatch.setattr(Timeline, "event", disturbed)
    _, job_id, run_dir = queued()
    assert read_json(run_dir.submission)["job_id"] == job_id
