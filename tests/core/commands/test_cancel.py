"""The command cancel: it ends all jobs of a run, and only a later resume continues the run."""

import errno
import re
from dataclasses import asdict

import pytest

from slurm_job_kit.jobs import records
from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.attempt.open import HeldError, refuse
from slurm_job_kit.jobs.commands import cancel
from slurm_job_kit.jobs.records.ended import read_attempts
from slurm_job_kit.jobs.rundir import read_json, write_json
from slurm_job_kit.jobs.runs import fact_reader, lookup, run_lock
from slurm_job_kit.jobs.slurm import job_list
from tests.core import run_files
from tests.core.run_files import make_run


@pytest.mark.parametrize("state", ["PENDING", "REQUEUE_HOLD", "EXPEDITING", "COMPLETING"])
def test_cancel_of_a_requeued_job_under_any_of_slurms_names_ends_the_run(slurm, here, state):
    slurm.set_state("4711", state)
    main(["submit", "tiny.yaml"])
    (run,) = lookup.all_runs()
    run_lock.claim(run, run_lock.this_process("4711"), 1)
    run_files.recorded(run, cause="preemption", decision="requeue")
    assert main(["cancel", "4711"]) == 0
    (record,) = read_attempts(run)
    assert (record.cause, record.decision) == ("preemption", "cancel")
    assert slurm.cancelled == ["4711"] and read_json(run.result)["status"] == "cancelled"
    assert not run.owner.exists()


def test_cancel_leaves_the_record_of_an_open_attempt_to_the_batch_script(slurm, here):
    slurm.set_state("4711", "COMPLETING")
    main(["submit", "tiny.yaml"])
    (run,) = lookup.all_runs()
    run_files.opened(run, nodes=["a"], job_id="4711")
    assert main(["cancel", "4711"]) == 0
    assert slurm.cancelled == ["4711"] and not run.result.exists() and not read_attempts(run)


def test_cancel_also_cancels_the_successor(guarded, slurm):
    guarded("RUNNING", "PENDING")
    assert main(["cancel", "tiny"]) == 0
    assert slurm.cancelled == ["4711 4712"]


def test_cancel_of_a_run_of_which_only_the_successor_is_left(guarded, slurm):
    run = guarded("NODE_FAIL", "PENDING")
    assert main(["cancel", "tiny"]) == 0
    assert slurm.cancelled == ["4712"]
    assert read_json(run.result)["status"] == "cancelled"


def test_cancel_leaves_a_completed_run_alone(slurm, here, capsys):
    run = make_run(here)
    write_json(run.result, {"status": "completed"})
    assert main(["cancel", "tiny"]) == 2
    assert read_json(run.result) == {"status": "completed"}


def test_cancel_of_a_complete_run_that_slurm_has_requeued_leaves_it_complete(slurm, here):
    """Its batch script was killed after the training ended, before the attempt was recorded."""
    main(["submit", "tiny.yaml"])
    (run,) = lookup.all_runs()
    run_files.opened(run, nodes=["a"], job_id="4711")
    ended = {"status": "completed", "global_step": 9, "weights_sha256": "ab"}
    write_json(run.attempt(1).outcome, ended)
    write_json(run.owner, run_files.claim(job_id="4711"))
    slurm.set_state("4711", "PENDING")
    assert main(["cancel", "tiny"]) == 0
    assert slurm.cancelled == ["4711"]
    result = read_json(run.result)
    assert (result["status"], result["weights_sha256"]) == ("completed", "ab")
    assert [record.decision for record in read_attempts(run)] == ["done"]


def test_cancel_of_what_does_not_run_is_a_users_error(slurm, here, capsys):
    make_run(here)
    assert main(["cancel", "tiny"]) == 2
    assert "neither queued nor running, but frozen: " in capsys.readouterr().err
    slurm.set_state("4711", "FAILED")
    main(["submit", "tiny.yaml"])
    assert main(["cancel", "4711"]) == 2
    assert re.search(r", but failed: .*\n  hint: .*why", capsys.readouterr().err)
    assert slurm.cancelled == []


def queued_twice(slurm, here):
    """A run with a pending job of submit and one of a plain sbatch; relative path, other runs."""
    assert main(["submit", "tiny.yaml"]) == 0
    (run,) = lookup.all_runs()
    slurm.set_state("4711", "PENDING")
    slurm.set_state("5000", "PENDING")
    target = run.path.relative_to(here)
    slurm.enqueue("4711", run.path, f"{run.code}/slurm/ddp.sbatch {run.path}")
    slurm.enqueue("5000", here, f"{here}/slurm/ddp.sbatch {target}")
    slurm.enqueue("5001", here, f"{here}/slurm/ddp.sbatch {target}-other")
    slurm.enqueue("5002", here, f"{here}/other.sh {target}")
    return run


@pytest.mark.parametrize("source", ["squeue", "sacct", "scontrol"])
def test_cancel_ends_every_queued_job_of_the_run_also_that_of_plain_sbatch(slurm, here, source):
    """Since Slurm 23.02 the arguments stand in the command line of sbatch alone."""
    run = queued_twice(slurm, here)
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


def test_no_job_of_another_run_is_cancelled_where_slurm_shows_no_arguments_at_all(slurm, here):
    """Slurm 24.11 without accounting: the kit's own job is known by its record."""
    queued_twice(slurm, here)
    slurm.hide_arguments()
    assert main(["cancel", "tiny"]) == 0
    assert slurm.cancelled == ["4711"]


def test_resume_refuses_a_run_that_a_plain_sbatch_has_queued(slurm, here, capsys):
    queued_twice(slurm, here)
    slurm.set_state("4711", "FAILED")
    (slurm.folder / "queue").write_text((slurm.folder / "queue").read_text().split("\n", 1)[1])
    assert main(["resume", "tiny"]) == 2
    assert "queued or running as job 5000" in capsys.readouterr().err
    assert slurm.submitted == 1


def refuse_start(run, me):
    """Refuse the start of a job as `attempt.open` does."""
    refuse(run, fact_reader.read(run, 1), me)


def test_a_job_of_a_cancelled_run_starts_only_after_a_resume(slurm, here):
    assert main(["submit", "tiny.yaml"]) == 0
    (run,) = lookup.all_runs()
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


def test_cancel_that_slurm_refuses_leaves_the_run_as_it_was(slurm, here):
    main(["submit", "tiny.yaml"])
    (run,) = lookup.all_runs()
    slurm.answer("scancel", error="no contact\n", status=1)
    assert main(["cancel", "tiny"]) == 1
    refuse_start(run, run_lock.this_process("4711"))


def test_cancel_ends_the_job_where_nothing_can_be_recorded(slurm, here, capfd, monkeypatch):
    main(["submit", "tiny.yaml"])
    full = OSError(errno.ENOSPC, "No space left on device")

    def fails(*_):
        raise full

    monkeypatch.setattr(records, "write_atomic", fails)
    monkeypatch.setattr(cancel, "write_atomic", fails)
    assert main(["cancel", "tiny"]) == 0
    assert slurm.cancelled == ["4711"]
    assert "No space left" in capfd.readouterr().err


def test_cancel_does_not_release_a_claim_that_another_process_is_replacing(slurm, here):
    main(["submit", "tiny.yaml"])
    (run,) = lookup.all_runs()
    slurm.set_state("4711", "PENDING")
    run_lock.claim(run, run_lock.this_process("4711"), 1)
    token = read_json(run.owner)["token"]
    lock = asdict(run_lock.this_process(None)) | {"attempt": 2, "token": "x"}
    write_json(run.owner.with_name(f".owner-after-{token}"), lock)
    assert main(["cancel", "tiny"]) == 0
    assert run.owner.exists()


def test_cancel_does_not_wait_for_ever_for_a_command_on_another_host(
    slurm, here, monkeypatch, capsys
):
    main(["submit", "tiny.yaml"])
    (run,) = lookup.all_runs()
    slurm.set_state("4711", "RUNNING")
    elsewhere = run_files.claim(job_id="local-x-1", host="x")
    write_json(run.path / ".submit-claim.json", elsewhere)
    monkeypatch.setattr(cancel, "CLAIM_WAIT_S", 0.0)
    assert main(["cancel", "tiny"]) == 0
    assert slurm.cancelled == ["4711"]
    assert "process 1 on x" in capsys.readouterr().err


def test_a_cancel_that_is_interrupted_before_scancel_leaves_no_mark(slurm, here, monkeypatch):
    main(["submit", "tiny.yaml"])
    (run,) = lookup.all_runs()
    slurm.set_state("4711", "RUNNING")

    def interrupted(users=()):
        raise KeyboardInterrupt

    monkeypatch.setattr(job_list, "queue", interrupted)
    assert main(["cancel", "tiny"]) == 130
    assert slurm.cancelled == []
    refuse_start(run, run_lock.this_process("4711"))
