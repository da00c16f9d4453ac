"""Runs whose job is of another user, or in another cluster: what Slurm does not show may live."""

import json
import os
import sys

import pytest

from slurm_job_kit.jobs import records
from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.console import user_name
from slurm_job_kit.jobs.records.queued import RecordedJob, Submission
from slurm_job_kit.jobs.rundir import append_jsonl, write_json
from slurm_job_kit.jobs.slurm import job_list
from tests.core import run_files
from tests.core.run_files import kit, make_checkpoint

ME, COLLEAGUE = 4001, os.getuid()
HIS_NAME = user_name(COLLEAGUE)
# From a real Slurm 22.05, shortened.
CONFIG = """\
ClusterName             = one
PreemptType             = preempt/qos
PrivateData             = jobs,usage,users
"""
GONE = "slurm_load_jobs error: Invalid job id specified\n"


def see_nothing(slurm):
    """Let Slurm answer about each job as about one that it does not have."""
    slurm.answer("scontrol", error=GONE, status=1)
    slurm.answer("scontrol", CONFIG, when="show config")
    slurm.answer("squeue")
    slurm.answer("sacct")
    slurm.answer("sacctmgr", "None\n")


@pytest.fixture
def run(slurm, submitted, monkeypatch):
    """A run that job 4711 of a colleague trains now; this user sees no job of others."""
    run = submitted
    run_files.opened(run, job_id="4711")
    claim = run_files.claim(job_id="4711", host="n1")
    write_json(run.owner, claim | {"uid": COLLEAGUE})
    make_checkpoint(run, 3)
    monkeypatch.setattr(os, "getuid", lambda: ME)
    see_nothing(slurm)
    return run


def printed(capsys, *words):
    """The exit code of a command, and all that it printed."""
    capsys.readouterr()
    code = main(list(words))
    return code, "".join(capsys.readouterr())


def test_a_hidden_job_is_unknown_to_status_and_why(run, capsys):
    code, text = printed(capsys, "status", "tiny", "--json")
    (row,) = json.loads(text)
    assert (code, row["state"]) == (0, "unknown")
    assert "of another user or cluster" in row["state_text"]
    code, text = printed(capsys, "why", "tiny", "--json")
    answer = json.loads(text)
    assert (code, answer["cause"]) == (0, "unknown")
    assert f"ask user {HIS_NAME}" in answer["advice"]
    assert not run.attempts.exists()


RESUME, CANCEL = ["resume", "tiny"], ["cancel", "tiny"]


@pytest.mark.parametrize(
    ("words", "has_owner"),
    [
        *((words, has_owner) for words in (RESUME, CANCEL) for has_owner in (True, False)),
        ([*RESUME, "--cluster", "local"], True),
    ],
)
def test_what_would_harm_a_hidden_job_is_refused_and_changes_nothing(
    run, slurm, capsys, words, has_owner
):
    if not has_owner:  # the job waits in the queue
        run.owner.unlink()
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
    code, text = printed(capsys, *words)
    assert code in (1, 2) and "job 4711 is of another user" in text and "ask user" in text
    assert slurm.submitted == 1 and not slurm.cancelled
    after = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
    assert {path for path in after if after[path] != before.get(path)} <= {run.path}


def test_what_the_run_directory_records_as_ended_is_no_hidden_job(run, slurm, capsys):
    run.owner.unlink()
    record = run_files.attempt(job_id="4711", decision="hold")
    append_jsonl(run.attempts, record)
    slurm.install("sbatch", "echo 'Submitted batch job 4712'")
    slurm.answer("sbatch", "", when="--test-only*")
    assert printed(capsys, "resume", "tiny")[0] == 0
    submission = records.read(Submission, run.submission)
    assert submission is not None and (submission.job_id, submission.uid) == ("4712", ME)


def test_a_mark_of_an_earlier_cancel_ends_no_later_job(run, slurm, capsys):
    run.owner.unlink()
    run.cancelled.write_text("2026-01-01 00:00:00: jobs cancel: 4710\n")
    assert printed(capsys, *RESUME)[0] == 2
    run.cancelled.write_text("2026-01-01 00:00:00: jobs cancel: 4711\n")
    assert printed(capsys, *RESUME)[0] == 0


# Root without these is refused by the permissions of files, as any user is.
AS_ANY_USER = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to give a directory to another user")
@pytest.mark.parametrize(
    ("mode", "words", "code", "text"),
    [
        (0o700, ["status", "RUN"], 2, "is closed to you"),
        (0o755, ["status", "tiny"], 0, ""),
        (0o755, ["why", "tiny"], 0, ""),
        (0o755, RESUME, 2, "is read-only for you"),
    ],
)
def test_a_run_that_is_closed_or_read_only_is_named_with_its_owner(run, mode, words, code, text):
    run.path.chmod(mode)
    os.chown(run.path, ME, ME)
    words = [str(run.path) if word == "RUN" else word for word in words]
    done = kit(*words, python=[*AS_ANY_USER, sys.executable])
    assert done.returncode == code and text in done.stderr, done.stderr
    assert not text or f"user {ME}" in done.stderr


def life(**fields):
    return job_list.life_of(RecordedJob("7", **fields))


def test_a_job_of_another_user_or_cluster_that_slurm_does_not_show_may_live(slurm):
    see_nothing(slurm)
    assert life(uid=4002).is_alive is None
    assert life(uid=os.getuid(), cluster="two").is_alive is None
    assert life(uid=os.getuid(), cluster="one").is_alive is False


SHOWN = """\
JobId=7 JobName=x
   UserId=other({uid}) GroupId=lab(2000) MCS_label=N/A
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
"""


def test_an_id_that_slurm_gave_to_another_user_is_no_living_job(slurm):
    recorded = RecordedJob("7", os.getuid())
    for uid, is_alive in ((os.getuid(), True), (4002, False)):
        slurm.answer("scontrol", SHOWN.format(uid=uid), when="show job 7")
        assert job_list.life_of(recorded).is_alive is is_alive
