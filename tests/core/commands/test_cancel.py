"""The command cancel: it ends all jobs of a run, and only a later resume continues the run."""

import errno
import re
import signal
import subprocess
from dataclasses import asdict
from unittest import mock

import pytest

from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.attempt.open import refuse
from slurm_job_kit.jobs.base import files
from slurm_job_kit.jobs.base.files import read_json
from slurm_job_kit.jobs.contract.records.ended import read_attempts
from slurm_job_kit.jobs.runs import fact_reader, run_lock
from tests.core import run_files
from tests.core.run_files import answered, make_run, write_json


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
def test_cancel_also_cancels_the_successor(guarded, slurm, capsys, first, cancelled, status):
    run = guarded(first, "PENDING")
    assert main(["cancel", "tiny", "--json"]) == 0
    assert answered(capsys.readouterr().out)["job_ids"] == cancelled.split()
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
    assert re.search(r", but failed: .*\n  hint: ", capsys.readouterr().err)
    assert slurm.cancelled == []


def test_cancel_that_slurm_refuses_leaves_the_run_as_it_was(slurm, submitted):
    slurm.answer("scancel", error="no contact\n", status=1)
    assert main(["cancel", "tiny"]) == 1
    refuse(submitted, fact_reader.read(submitted, 1), run_lock.this_process("4711"))


def test_cancel_ends_the_job_where_nothing_can_be_recorded(slurm, submitted, capfd, monkeypatch):
    full = mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(files, "write_atomic", full)
    assert main(["cancel", "tiny"]) == 0
    assert slurm.cancelled == ["4711"]
    assert "No space left" in capfd.readouterr().err


def test_cancel_stops_the_local_process_that_owns_the_run(here):
    run = make_run(here)
    with subprocess.Popen(["/bin/sleep", "1000"]) as process:
        owner = asdict(run_lock.process(process.pid))
        write_json(run.owner, run_files.claim(**owner))
        assert main(["cancel", "tiny"]) == 0
        assert process.wait(100) == -signal.SIGTERM
