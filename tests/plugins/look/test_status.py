"""The command status: one row for each run, from its directory, its job and its process."""

import time

import pytest

from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.plugins.look import status
from slurm_job_kit.jobs.runs import run_lock, state
from slurm_job_kit.jobs.slurm.job import Job
from slurm_job_kit.jobs.slurm.job_list import Liveness
from tests.core import run_files
from tests.core.run_files import answered, make_run, write_json


def test_status_without_runs_says_how_to_start(here, capsys):
    assert main(["status"]) == 0
    assert "make submit" in capsys.readouterr().out
    assert main(["status", "--json"]) == 0
    assert answered(capsys.readouterr().out) == {"runs": []}


@pytest.mark.parametrize("result", ["held", "killed", "running"])
def test_a_run_that_ended_has_no_speed_and_no_time_left(here, capsys, result):
    run = make_run(here)
    if result == "running":
        run_lock.claim(run, run_lock.this_process(None), 1)
    elif result != "killed":
        write_json(run.result, {"status": result, "reason": "stopped on request"})
    speed = {"samples_per_s": 93.0, "tokens_per_s": 2.4e6, "mfu": 0.413}
    write_json(run.progress, {"step": 42, "total": 50, "speed": speed, "eta_s": 1})
    assert main(["status"]) == 0
    shown = capsys.readouterr().out
    assert "step 42/50" in shown
    pace = "step 42/50  93 samples/s  2400000 tokens/s  mfu 41.30%  1 s left"
    assert (pace in shown) == (result == "running")
    assert ("held: stopped on request" in shown) == (result == "held")


@pytest.mark.parametrize(
    ("result", "slurm_state", "word"),
    [
        ({}, None, "stopped"),
        ({}, "PENDING", "pending"),
        ({}, "NODE_FAIL", "node_fail"),
        ({"status": "held"}, "PENDING", "pending"),  # resumed
        ({"status": "held"}, "no answer", "unknown"),
        ({"status": "completed"}, "TIMEOUT", "completed"),
        ({"status": "completed"}, "RUNNING", "completed"),
    ],
)
def test_the_run_directory_knows_better_than_slurm_how_a_run_ended(here, result, slurm_state, word):
    run = make_run(here)
    run_files.recorded(run)
    if result:
        write_json(run.result, result)
    write_json(run.submission, {"job_id": "12"})  # after the result
    job = Job(slurm_state) if slurm_state else None
    life = Liveness(job is not None and job.is_alive, job=job)
    if slurm_state == "no answer":
        life = Liveness(None, is_silent=True)
    assert state.read(run, lambda jobs: {"12": life}).word == word


@pytest.mark.parametrize(
    ("states", "jobs", "state"),
    [
        (("RUNNING", "PENDING"), "4711, then 4712", "starting"),
        (("NODE_FAIL", "PENDING"), "4712", "waiting in the queue: "),
        (("FAILED", "CANCELLED"), "4711", "ended, FAILED to Slurm"),
    ],
)
def test_status_shows_the_job_that_waits(guarded, capsys, states, jobs, state):
    guarded(*states)
    assert main(["status"]) == 0
    row = capsys.readouterr().out.splitlines()[1]
    assert f"  {jobs}  {state}" in row


def test_status_shows_the_newest_runs_and_how_many_there_are(here, capsys):
    for number in range(status.MAX_LISTED + 2):
        make_run(here, f"202601{number:02d}")
    assert main(["status"]) == 0
    *_, oldest, note = capsys.readouterr().out.splitlines()
    assert oldest.split()[1] == "20260102"
    assert note.startswith("20 of 22 runs") and "--all" in note
    assert main(["status", "--all"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[1] == "20260100"
    assert main(["status", "--json"]) == 0
    assert len(answered(capsys.readouterr().out)["runs"]) == 22


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("REQUEUE_HOLD", "waiting in the queue: Slurm holds it: `scontrol release` frees it"),
        ("STOPPED", "suspended by Slurm"),
        ("SIGNALING", "starting"),
        ("HIBERNATING", "HIBERNATING to Slurm"),
    ],
)
def test_no_state_of_a_living_job_is_shown_as_an_end(slurm, submitted, capsys, state, text):
    slurm.set_state("4711", state)
    slurm.set_queued("4711", "N/A|1:00:00|2||job requeued in held state")
    assert main(["status", "--json"]) == 0
    (row,) = answered(capsys.readouterr().out)["runs"]
    assert row["state_text"].startswith(text)


def test_a_pending_run_is_shown_with_the_reason_and_the_expected_start(slurm, submitted, capsys):
    slurm.set_state("4711", "PENDING")
    start = int(time.time()) + 7830
    slurm.set_queued("4711", f"{start}|1:00:00|2||Priority")
    assert main(["status", "--json"]) == 0
    (row,) = answered(capsys.readouterr().out)["runs"]
    assert row["pending_reason"] == "Priority" and row["expected_start"] == start
    assert main(["status", "tiny"]) == 0  # in detail
    shown = capsys.readouterr().out
    why = "waiting in the queue: jobs with a higher priority are before it"
    assert f"{why}, expected start in 2 h 10 min" in shown and "2 nodes wanted" in shown


def test_the_end_of_a_job_that_only_the_accounting_has_is_shown(slurm, submitted, capsys):
    slurm.answer("scontrol", error="slurm_load_jobs error: Invalid job id specified", status=1)
    slurm.answer("squeue")
    slurm.answer("sacct", "4711|TIMEOUT\n")
    assert main(["status", "--json"]) == 0
    (row,) = answered(capsys.readouterr().out)["runs"]
    assert row["state"] == "timeout" and "TIMEOUT to Slurm" in row["state_text"]
    assert main(["why", "tiny", "--json"]) == 0
    assert answered(capsys.readouterr().out)["cause"] == "time_limit"
    slurm.answer("sacct", "4711|RUNNING\n")  # slurmctld does not have it: no state of a live job
    assert main(["status", "--json"]) == 0
    assert answered(capsys.readouterr().out)["runs"][0]["state"] == "frozen"
