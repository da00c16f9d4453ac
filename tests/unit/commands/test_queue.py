"""Queueing a run: sbatch gets the frozen script, and the run directory records the job."""

import errno
import os
import shlex
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_job_kit.jobs.commands import queue
from slurm_job_kit.jobs.config.load import LoadedSpec
from slurm_job_kit.jobs.errors import FailedError
from slurm_job_kit.jobs.records.queued import Submission
from slurm_job_kit.jobs.rundir import RunDir, Timeline, read_json, read_jsonl
from slurm_job_kit.jobs.runs import lookup
from slurm_job_kit.jobs.runs.freeze import freeze
from slurm_job_kit.jobs.slurm.sbatch import SCRIPT, sbatch_argv, sbatch_options
from slurm_job_kit.jobs.spec import Slurm, Spec

RUN = RunDir(Path("/runs/x y/1"))
HOSTILE = "a 'b' \"c\" $(touch pwned) `d` %j * --wrap=e ü"


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


def test_a_hostile_value_stays_one_argument(spec, sbatch, repository):
    hostile = Spec(name=HOSTILE, slurm=Slurm(sbatch_args={"comment": HOSTILE}))
    _, run_dir = queued(hostile, repository)
    argv = sbatch.argv
    assert argv == sbatch_argv(hostile, run_dir)[1:]
    assert {f"--job-name={HOSTILE}", f"--comment={HOSTILE}"} <= set(argv)
    assert not list(repository.parent.rglob("pwned"))


def test_the_executor_submits_the_frozen_script_with_the_run_directory(spec, sbatch, repository):
    job_id, run_dir = queued(spec, repository)
    assert job_id == "4711"
    assert sbatch.argv[-2:] == [str(run_dir.kit / SCRIPT), str(run_dir.path)]


def test_a_submitted_run_records_its_job_and_is_found_by_its_id(spec, sbatch, repository):
    _, run_dir = queued(spec, repository)
    argv = sbatch_argv(spec, run_dir)
    assert read_json(run_dir.submission) == {"argv": argv, "job_id": "4711", "uid": os.getuid()}
    assert lookup.find("4711") == run_dir
    events = [event["event"] for event in read_jsonl(run_dir.timeline("submit"))]
    assert events == ["freeze", "submit"]


def test_a_refused_job_shows_sbatchs_message_and_leaves_no_run(spec, sbatch, repository):
    sbatch.refuse(3, "sbatch: error: invalid partition specified: $(x)")
    with pytest.raises(FailedError) as caught:
        queued(spec, repository)
    command, message = str(caught.value).split("\n")[1:3]
    assert "hint: slurm.partition: sinfo -s" in str(caught.value)
    assert shlex.split(command)[1:] == sbatch.argv
    assert message.endswith("invalid partition specified: $(x)")
    assert lookup.all_runs() == []
    assert not (lookup.runs_root() / "first").exists()


@pytest.mark.parametrize(("nodes", "is_refused"), [(4, False), (5, True)])
def test_more_nodes_than_a_partition_has_are_refused_in_slurms_words(
    spec, sbatch, repository, nodes, is_refused
):
    sbatch.answer("scontrol", "PreemptType = preempt/none\n", when="*config")
    partition = "PartitionName=batch\n   Default=YES\n   State=UP TotalNodes=4\n"
    sbatch.answer("scontrol", partition, when="--all show partition*")
    error = "allocation failure: Requested node configuration is not available\n"
    sbatch.answer("sbatch", error=error, status=1, when="--test-only*")
    asked = replace(spec, slurm=Slurm(nodes=nodes))
    if not is_refused:
        assert queued(asked, repository)[0] == "4711"
        return
    with pytest.raises(FailedError, match="(?s)is not available.*hint: slurm.nodes"):
        queued(asked, repository)
    assert sbatch.submitted == 0 and lookup.all_runs() == []


def test_without_sbatch_nothing_is_left(spec, repository, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FailedError, match="nothing is queued"):
        queued(spec, repository)
    assert lookup.all_runs() == []


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


def test_a_submission_inside_a_job_hides_that_job_but_not_the_cluster(
    spec, sbatch, repository, monkeypatch
):
    inside = {"SLURM_JOB_ID": "1", "SLURM_NNODES": "9", "SLURM_CONF": "/x/slurm.conf", "OWN": "1"}
    for name, value in inside.items():
        monkeypatch.setenv(name, value)
    queued(spec, repository)
    seen = sbatch.env
    assert [line for line in seen if line.startswith("SLURM_")] == ["SLURM_CONF=/x/slurm.conf"]
    assert "OWN=1" in seen
    assert os.environ["SLURM_JOB_ID"] == "1"


@pytest.mark.parametrize(("error", "accepted"), [("", True), ("sbatch: error: no", False)])
def test_test_only_returns_slurms_answer_and_queues_nothing(spec, sbatch, error, accepted):
    if error:
        sbatch.refuse(3, error)
    answer = queue.test_only(spec, RUN, Path("slurm/ddp.sbatch"))
    assert answer is not None and answer.is_accepted is accepted
    assert error in answer.text
    options = sbatch_options(spec, RUN.path)
    assert sbatch.argv == ["--test-only", *options, "slurm/ddp.sbatch", str(RUN.path)]


def test_test_only_without_sbatch_returns_none(spec, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert queue.test_only(spec, RUN, Path("slurm/ddp.sbatch")) is None
