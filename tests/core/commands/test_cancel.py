"""The command cancel: it ends all jobs of a run, and only a later resume continues the run."""

import contextlib
import errno
import os
import re
import signal
import subprocess
from dataclasses import asdict
from unittest import mock

import pytest

from slurm_job_kit.jobs import procfs, records
from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.attempt.open import HeldError, refuse
from slurm_job_kit.jobs.commands import cancel
from slurm_job_kit.jobs.console import user_name
from slurm_job_kit.jobs.records.ended import read_attempts
from slurm_job_kit.jobs.rundir import read_json, write_json
from slurm_job_kit.jobs.runs import fact_reader, lookup, run_lock, state
from slurm_job_kit.jobs.slurm import job_list
from tests.core import run_files
from tests.core.run_files import make_run


@pytest.mark.parametrize("state", ["PENDING", "REQUEUE_HOLD", "EXPEDITING", "COMPLETING"])
def test_cancel_of_a_requeued_job_under_any_of_slurms_names_ends_the_run(slurm, submitted, state):
    run = submitted
    slurm.set_state("4711", state)
    run_lock.claim(run, run_lock.this_process("4711"), 1)
    run_files.recorded(run, cause="preemption", decision="requeue")
    assert main(["cancel", "4711"]) == 0
    (record,) = read_attempts(run)
    assert (record.cause, record.decision) == ("preemption", "cancel")
    assert slurm.cancelled == ["4711"] and read_json(run.result)["status"] == "cancelled"
    assert not run.owner.exists()


def test_cancel_leaves_the_record_of_an_open_attempt_to_the_batch_script(slurm, submitted):
    slurm.set_state("4711", "COMPLETING")
    run_files.opened(submitted, nodes=["a"], job_id="4711")
    assert main(["cancel", "4711"]) == 0
    assert slurm.cancelled == ["4711"]
    assert not submitted.result.exists() and not read_attempts(submitted)


@pytest.mark.parametrize(
    ("first", "cancelled", "status"),
    [("RUNNING", "4711 4712", None), ("NODE_FAIL", "4712", "cancelled")],
)
def test_cancel_also_cancels_the_successor(guarded, slurm, first, cancelled, status):
    run = guarded(first, "PENDING")
    assert main(["cancel", "tiny"]) == 0
    assert slurm.cancelled == [cancelled]
    assert (read_json(run.result) or {}).get("status") == status


def test_cancel_of_a_complete_run_that_slurm_has_requeued_leaves_it_complete(slurm, submitted):
    """Its batch script was killed after the training ended, before the attempt was recorded."""
    run_files.opened(submitted, nodes=["a"], job_id="4711")
    ended = {"status": "completed", "global_step": 9, "weights_sha256": "ab"}
    write_json(submitted.attempt(1).outcome, ended)
    write_json(submitted.owner, run_files.claim(job_id="4711"))
    slurm.set_state("4711", "PENDING")
    assert main(["cancel", "tiny"]) == 0
    assert slurm.cancelled == ["4711"]
    result = read_json(submitted.result)
    assert (result["status"], result["weights_sha256"]) == ("completed", "ab")
    assert [record.decision for record in read_attempts(submitted)] == ["done"]


def test_cancel_does_not_take_a_silent_queue_for_an_empty_one(slurm, here, capsys):
    """A job of plain sbatch may wait for a run that was only frozen."""
    make_run(here)
    slurm.answer("squeue", status=1)
    assert main(["cancel", "tiny"]) == 1
    assert "squeue does not answer whether a job of it is queued" in capsys.readouterr().err


def test_cancel_of_what_does_not_run_is_a_users_error(slurm, here, capsys):
    run = make_run(here)
    assert main(["cancel", "tiny"]) == 2
    assert "neither queued nor running, but frozen: " in capsys.readouterr().err
    write_json(run.result, {"status": "completed"})
    assert main(["cancel", "tiny"]) == 2
    assert read_json(run.result) == {"status": "completed"}
    slurm.set_state("4711", "FAILED")
    main(["submit", "tiny.yaml"])
    assert main(["cancel", "4711"]) == 2
    assert re.search(r", but failed: .*\n  hint: .*why", capsys.readouterr().err)
    assert slurm.cancelled == []


@pytest.fixture
def queued_twice(slurm, here, submitted):
    """A run with a pending job of submit and one of a plain sbatch; relative path, other runs."""
    run = submitted
    slurm.set_state("4711", "PENDING")
    slurm.set_state("5000", "PENDING")
    target = run.path.relative_to(here)
    slurm.enqueue("4711", run.path, f"{run.code}/slurm/ddp.sbatch {run.path}")
    slurm.enqueue("5000", here, f"{here}/slurm/ddp.sbatch {target}")
    slurm.enqueue("5001", here, f"{here}/slurm/ddp.sbatch {target}-other")
    slurm.enqueue("5002", here, f"{here}/other.sh {target}")
    return run


@pytest.mark.parametrize("source", ["squeue", "sacct", "scontrol"])
def test_cancel_ends_every_queued_job_of_the_run_also_that_of_plain_sbatch(
    slurm, here, queued_twice, source
):
    """Since Slurm 23.02 the arguments stand in the command line of sbatch alone."""
    run = queued_twice
    if source != "squeue":
        slurm.hide_arguments()
    line = f"sbatch --nodes=3 {here}/slurm/ddp.sbatch {run.path}"
    other = f"sbatch {here}/slurm/ddp.sbatch {run.path}-other"
    if source == "sacct":
        slurm.answer("sacct", f"4711|{line}\n5000|{line}\n5001|{other}\n", when="*SubmitLine*")
    elif source == "scontrol":
        for job_id, text in (("4711", line), ("5000", line), ("5001", other)):
            shown = f"   JobState=PENDING Reason=None Dependency=(null)\n   SubmitLine={text}\n"
            slurm.answer("scontrol", shown, when=f"show?job?{job_id}")
    assert main(["cancel", "tiny"]) == 0
    assert slurm.cancelled == ["4711 5000"]


@pytest.mark.usefixtures("queued_twice")
def test_no_job_of_another_run_is_cancelled_where_slurm_shows_no_arguments_at_all(slurm):
    """Slurm 24.11 without accounting: the kit's own job is known by its record."""
    slurm.hide_arguments()
    assert main(["cancel", "tiny"]) == 0
    assert slurm.cancelled == ["4711"]


@pytest.mark.usefixtures("queued_twice")
def test_resume_refuses_a_run_that_a_plain_sbatch_has_queued(slurm, capsys):
    slurm.set_state("4711", "FAILED")
    (slurm.folder / "queue").write_text((slurm.folder / "queue").read_text().split("\n", 1)[1])
    assert main(["resume", "tiny"]) == 2
    assert "queued or running as job 5000" in capsys.readouterr().err
    assert slurm.submitted == 1


def refuse_start(run, me):
    """Refuse the start of a job as `attempt.open` does."""
    refuse(run, fact_reader.read(run, 1), me)


def test_a_job_of_a_cancelled_run_starts_only_after_a_resume(slurm, submitted):
    run = submitted
    slurm.set_state("4711", "PENDING")
    assert main(["cancel", "tiny"]) == 0
    another = run_lock.this_process("5000")  # queued before the cancel, which did not find it
    with pytest.raises(HeldError, match="cancelled"):
        refuse_start(run, another)
    slurm.set_state("4711", "CANCELLED")
    slurm.refuse(7)
    assert main(["resume", "tiny"]) == 1
    with pytest.raises(HeldError):  # no job was queued: it is still cancelled
        refuse_start(run, another)
    (slurm.folder / "refusal").unlink()
    assert main(["resume", "tiny"]) == 0
    refuse_start(run, another)


def test_cancel_that_slurm_refuses_leaves_the_run_as_it_was(slurm, submitted):
    slurm.answer("scancel", error="no contact\n", status=1)
    assert main(["cancel", "tiny"]) == 1
    refuse_start(submitted, run_lock.this_process("4711"))


def test_cancel_ends_the_job_where_nothing_can_be_recorded(slurm, submitted, capfd, monkeypatch):
    full = mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(records, "write_atomic", full)
    monkeypatch.setattr(cancel, "write_atomic", full)
    assert main(["cancel", "tiny"]) == 0
    assert slurm.cancelled == ["4711"]
    assert "No space left" in capfd.readouterr().err


def test_cancel_does_not_release_a_claim_that_another_process_is_replacing(slurm, submitted):
    slurm.set_state("4711", "PENDING")
    run_lock.claim(submitted, run_lock.this_process("4711"), 1)
    token = read_json(submitted.owner)["token"]
    lock = asdict(run_lock.this_process(None)) | {"attempt": 2, "token": "x"}
    write_json(submitted.owner.with_name(f".owner-after-{token}"), lock)
    assert main(["cancel", "tiny"]) == 0
    assert submitted.owner.exists()


def test_cancel_does_not_wait_for_ever_for_a_command_on_another_host(
    slurm, submitted, monkeypatch, capsys
):
    elsewhere = run_files.claim(job_id="local-x-1", host="x")
    write_json(submitted.path / ".submit-claim.json", elsewhere)
    monkeypatch.setattr(cancel, "CLAIM_WAIT_S", 0.0)
    assert main(["cancel", "tiny"]) == 0
    assert slurm.cancelled == ["4711"]
    assert "process 1 on x" in capsys.readouterr().err


def test_a_cancel_that_is_interrupted_before_scancel_leaves_no_mark(slurm, submitted, monkeypatch):
    monkeypatch.setattr(job_list, "queue", mock.Mock(side_effect=KeyboardInterrupt))
    assert main(["cancel", "tiny"]) == 130
    assert slurm.cancelled == []
    refuse_start(submitted, run_lock.this_process("4711"))


@pytest.fixture
def sleeper(here):
    """`sleeper(*fds)`: a process of this user that has these files open."""
    with contextlib.ExitStack() as stack:

        def start(*fds):
            process = stack.enter_context(subprocess.Popen(["/bin/sleep", "60"], pass_fds=fds))
            stack.callback(process.kill)
            return process

        yield start


def owned_by(run, pid, start):
    """Record a process as the owner, as anybody could who may write to the run."""
    claim = run_files.claim(job_id=f"local-x-{pid}", host=os.uname().nodename, uid=os.getuid())
    write_json(run.owner, claim | {"pid": pid, "pid_start": start})


def test_cancel_stops_the_process_that_has_the_run_open(here, sleeper):
    run = make_run(here)
    fd = os.open(run.path, os.O_RDONLY)
    process = sleeper(fd)
    os.close(fd)
    owned_by(run, process.pid, procfs.start_of(process.pid))
    assert main(["cancel", "tiny"]) == 0
    assert process.wait(10) == -signal.SIGTERM


def test_a_process_that_proc_does_not_show_is_not_stopped(here, sleeper, monkeypatch, capfd):
    """One of another user has no descriptors to look at."""
    run, process = make_run(here), sleeper()
    owned_by(run, process.pid, procfs.start_of(process.pid))
    for module in (cancel, run_lock):
        monkeypatch.setattr(module, "has_open", lambda pid, folder: None)
    assert main(["cancel", "tiny"]) == 2
    assert f"process {process.pid} has ended, or is of user" in capfd.readouterr().err
    assert process.poll() is None


@pytest.mark.parametrize(
    "command",
    [["cancel", "tiny"], pytest.param(["clean", "tiny", "--yes"], marks=pytest.mark.room("clean"))],
)
def test_no_process_of_this_user_is_taken_for_that_of_a_run_by_its_pid_and_start(
    here, sleeper, capfd, command
):
    run, process = make_run(here), sleeper()
    owned_by(run, process.pid, procfs.start_of(process.pid))
    main(command)
    error = capfd.readouterr().err
    assert f"process {process.pid} here, which {run.owner} names, does not show this run" in error
    assert process.poll() is None and run.spec.exists()


@pytest.mark.parametrize("pid", [-1, 0, 1, 2**22])
@pytest.mark.parametrize("uid", [os.getuid(), 12345])
def test_a_recorded_pid_that_means_other_processes_is_never_signalled(here, monkeypatch, pid, uid):
    run = make_run(here)
    owned_by(run, pid, procfs.start_of(pid))
    write_json(run.owner, read_json(run.owner) | {"uid": uid})
    signals = mock.Mock(side_effect=PermissionError)
    monkeypatch.setattr(os, "kill", signals)
    assert main(["cancel", "tiny"]) == 2
    assert all(call.args[1] == 0 for call in signals.mock_calls)
    word = "unreadable" if pid < 1 else "unknown" if pid > 1 and uid != os.getuid() else "lost"
    assert state.read(run).word == word


@pytest.mark.parametrize(
    "job_id", ["13", "13_0", "12,13", "13_[0-5]", "--user=root", "_", "", "-1", "*"]
)
@pytest.mark.parametrize("is_silent", [False, True])
def test_cancel_ends_no_other_job_of_this_user_that_the_files_of_a_run_name(
    slurm, here, submitted, capfd, job_id, is_silent
):
    run, other = submitted, make_run(here, "20260102")
    for each in ("13", "13_0"):
        slurm.enqueue(each, other.path, f"{other.kit}/slurm/ddp.sbatch {other.path}")
        lookup.remember(other, each)
    write_json(run.submission, read_json(run.submission) | {"job_id": job_id})
    if is_silent:
        slurm.answer("squeue", error="Unable to contact slurm controller", status=1)
    capfd.readouterr()
    assert main(["cancel", run.run_id]) in (1, 2)
    assert slurm.cancelled == [] and not run.cancelled.exists()
    error = capfd.readouterr().err
    if job_id in ("13", "13_0") and not is_silent:
        assert f"{run.run_id}: its files name job {job_id}, which works in {other.path}" in error


def test_cancel_ends_the_own_job_beside_one_that_is_not_the_runs(slurm, here, submitted, capfd):
    write_json(submitted.successor, {"job_id": "13", "after": "4711", "reason": ""})
    slurm.enqueue("13", here, "other.sh")
    assert main(["cancel", "tiny"]) == 0
    assert slurm.cancelled == ["4711"]
    assert "name job 13, which works in" in capfd.readouterr().err


def test_cancel_names_the_user_whose_run_it_is(slurm, submitted, monkeypatch, capfd):
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert main(["cancel", "tiny"]) == 0
    assert f"is a run of user {user_name(os.getuid())}" in capfd.readouterr().err
