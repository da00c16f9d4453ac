"""Whether Slurm itself requeues a job that stops in the grace of its preemption."""

import dataclasses

import pytest

from slurm_job_kit.jobs.base.files import append_jsonl
from slurm_job_kit.jobs.contract.records.ended import Evidence, read_attempts
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.plugins.sites import requeue_policy
from slurm_job_kit.jobs.slurm.job import Job
from tests.core import run_files

SEEN = Evidence("stopped", "UNKNOWN", "", ("SIGTERM",), False, True, None)
PREEMPTED = Job("RUNNING", "None", 0, True)
CONFIG = """\
MaxBatchRequeue         = {limit}
PreemptMode             = REQUEUE
PreemptType             = preempt/{kind}
SLURM_VERSION           = {version}
"""
PLAIN = {"limit": 5, "kind": "partition_prio", "version": "24.11.5", "mode": "REQUEUE", "qos": ""}
LOW = "PartitionName=low PreemptMode={mode}\n"


@pytest.fixture
def left(tmp_path, fake_slurm, monkeypatch):
    """Returns the policy for a preempted job on a site with these settings."""
    monkeypatch.setenv("SLURM_JOB_PARTITION", "low")
    monkeypatch.setenv("SLURM_JOB_QOS", "cheap")
    run_dir = RunDir(tmp_path)

    def ask(seen=SEEN, job=PREEMPTED, waits=0, **settings):
        site = PLAIN | settings
        for name in ("scontrol", "sacctmgr"):
            fake_slurm.answer(name, status=1)
        fake_slurm.answer("scontrol", CONFIG.format_map(site), when="show config")
        fake_slurm.answer("scontrol", LOW.format_map(site), when="*show partition low")
        fake_slurm.answer("sacctmgr", site["qos"], when="*show qos name=cheap *")
        run_dir.attempts.unlink(missing_ok=True)
        before = [("6", "wait"), ("7", "requeue"), *[("7", "wait")] * waits]
        for attempt, (job_id, decision) in enumerate(before):
            record = run_files.attempt(attempt=attempt, job_id=job_id, decision=decision)
            append_jsonl(run_dir.attempts, record)
        return requeue_policy.slurm_requeues_itself(read_attempts(run_dir), seen, job, "7")

    return ask


def test_from_24_05_to_25_11_slurm_requeues_what_ends_in_its_grace(left):
    """Since 26.05 it does so no second time, where the kit does."""
    assert left() and left(version="24.05.0") and left(version="25.11.2")
    assert not left(version="23.11.10") and not left(version="26.05.5")


def test_slurm_holds_a_job_that_it_requeued_too_often(left):
    assert [left(waits=waits) for waits in range(5)] == [True, True, True, False, False]
    assert left(limit=3) and not left(limit=3, waits=1)
    assert not left(limit=2)


@pytest.mark.parametrize("mode", ["CANCEL", "OFF", "SUSPEND", "GANG,SUSPEND"])
def test_where_preempted_jobs_are_not_requeued_we_do_it(left, mode):
    assert not left(mode=mode)
    assert not left(kind="qos", qos=f"cheap|{mode.lower()}")


def test_a_qos_decides_where_qos_preempt(left):
    assert left(kind="qos", qos="cheap|requeue", mode="OFF")
    # The cluster's mode, or no answer: not certain.
    assert not left(kind="qos", qos="cheap|cluster")


def test_without_an_answer_we_requeue(left, tmp_path, monkeypatch):
    assert not left(version="?")
    monkeypatch.setenv("SLURM_JOB_PARTITION", "other")
    assert not left()
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert not left()


@pytest.mark.parametrize(
    ("seen", "job"),
    [
        ({}, {"is_preempted": False}),
        ({}, {"state": "COMPLETING"}),
        ({}, {"can_requeue": False}),
        ({}, {"text": "   ExpeditedRequeue=Yes"}),  # Slurm would hold it
        ({"outcome": "completed"}, {}),
    ],
)
def test_slurm_is_asked_only_in_a_grace_that_we_stop_in(left, fake_slurm, seen, job):
    assert not left(dataclasses.replace(SEEN, **seen), dataclasses.replace(PREEMPTED, **job))
    assert fake_slurm.calls == []
