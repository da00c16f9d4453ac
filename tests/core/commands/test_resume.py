"""The command resume: one job for a run that stopped, with a changed spec if wanted."""

import os
import subprocess
import sys
import threading

import pytest

from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.base.files import read_json
from slurm_job_kit.jobs.commands.submit_claim import hold_claim
from tests.core import run_files
from tests.core.run_files import REPOSITORY, make_run, write_json
from tests.core.waiting import wait_for


def test_resume_refuses_a_run_that_its_successor_continues(guarded, capsys):
    guarded("NODE_FAIL", "PENDING")
    assert main(["resume", "tiny"]) == 2
    assert "queued as job 4712" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", [pytest.param("status", marks=pytest.mark.plugin("look")), "resume", "cancel"]
)
def test_a_run_that_completed_and_was_killed_is_complete_to_each_command(here, capsys, command):
    run = make_run(here)
    write_json(
        run_files.opened(run, job_id="local-here-1").outcome,
        {"status": "completed", "global_step": 9},
    )
    main([command, "tiny"])
    assert not run.result.exists()  # the next start of a job writes it
    assert "complete" in "".join(capsys.readouterr())


def test_resume_of_a_running_job_is_a_users_error(submitted, capsys):
    assert main(["resume", "4711"]) == 2
    assert "as job 4711\n  hint: wait until it ends, or cancel it" in capsys.readouterr().err


def test_resume_waits_for_the_end_of_the_job_that_held_the_run(slurm, submitted):
    run_files.recorded(submitted, job_id="4711", decision="hold", cause="crash")
    write_json(submitted.result, {"status": "held"})
    slurm.set_state("4711", "COMPLETING")
    ending = threading.Timer(0.6, slurm.set_state, ("4711", "FAILED"))
    ending.start()
    assert main(["resume", "tiny"]) == 0
    assert not ending.is_alive()
    ending.join()


def test_resume_needs_to_know_whether_the_job_still_runs(slurm, submitted, capsys):
    slurm.answer("squeue", error="Unable to contact slurmctld\n", status=1)
    assert main(["resume", "4711"]) == 1
    assert "whether job 4711 still runs" in capsys.readouterr().err


@pytest.fixture
def failed(slurm, submitted):
    """The run whose job 4711 FAILED."""
    slurm.set_state("4711", "FAILED")
    return submitted


def test_resume_queues_no_job_without_frozen_code_or_whole_spec(failed, slurm, capsys):
    code, text = failed.code.resolve(), failed.spec.read_text()
    failed.spec.write_text(text[:9])
    assert main(["resume", "tiny"]) == 2
    assert f"{failed.spec}: not JSON" in capsys.readouterr().err
    failed.spec.write_text(text)
    code.rename(code.with_name("purged"))
    assert main(["resume", "tiny"]) == 2
    assert "the frozen code has lost or changed files" in capsys.readouterr().err
    assert slurm.submitted == 1


def test_a_resume_that_slurm_refuses_leaves_the_run_its_last_job(failed, slurm):
    before = failed.submission.read_text()
    slurm.refuse(1)
    assert main(["resume", "tiny"]) == 1
    assert failed.submission.read_text() == before


def test_resume_restores_the_setup_lines_that_a_purge_deleted(failed):
    text = failed.setup.read_text()
    failed.setup.unlink()
    assert main(["resume", "tiny"]) == 0
    assert failed.setup.read_text() == text


SLOW_SBATCH = """
echo submitted >>"$FAKE_SLURM/submitted"
for i in $(seq 2000); do [ -e "$FAKE_SLURM/go" ] && break; sleep 0.05; done
echo 'Submitted batch job 4712'
"""


def test_of_two_resumes_at_once_one_queues_a_job(slurm, failed, capsys):
    slurm.install("sbatch", SLOW_SBATCH)
    command = [sys.executable, "-m", "jobs", "resume", "tiny"]
    env = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL) as first:
        try:
            wait_for(lambda: slurm.submitted == 2)
            assert main(["resume", "tiny"]) == 2
            assert f"process {first.pid} on " in capsys.readouterr().err
        finally:
            (slurm.folder / "go").touch()
    assert first.returncode == 0
    slurm.set_state("4712", "PENDING")
    assert main(["resume", "tiny"]) == 2
    assert "job 4712" in capsys.readouterr().err
    assert slurm.submitted == 2


def claim_of(run, **changes):
    """The claim of another process on the run."""
    with hold_claim(run):
        (claim,) = run.path.glob(".submit-claim*")
        record = read_json(claim) | changes
    write_json(claim, record)
    return claim


def test_the_claim_of_a_resume_that_was_killed_is_taken_over(failed):
    claim = claim_of(failed, job_id="local-x-1", pid_start="0")
    assert main(["resume", "tiny"]) == 0
    assert not claim.exists()


def test_the_claim_of_a_process_on_another_host_is_named_with_the_file_to_delete(failed, capsys):
    claim = claim_of(failed, job_id="local-x-1", host="elsewhere", pid=17)
    assert main(["resume", "tiny"]) == 2
    said = capsys.readouterr().err
    assert "process 17 on elsewhere" in said and f"delete {claim}" in said
    claim.unlink()
    assert main(["resume", "tiny"]) == 0
