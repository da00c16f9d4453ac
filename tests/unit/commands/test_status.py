"""The command status: one row for each run, from its directory, its job and its process."""

import json
from dataclasses import asdict
from typing import Any

import pytest

from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.attempt import run_lock
from slurm_job_kit.jobs.commands import status
from slurm_job_kit.jobs.records.training import Result
from slurm_job_kit.jobs.rundir import append_jsonl, write_json
from tests.unit import run_files
from tests.unit.commands.commands_kit import make_run


def test_status_lists_runs_newest_first(here, capsys):
    for run_id in ("20260101", "20260102"):
        make_run(here, run_id)
    assert main(["status"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["NAME", "RUN", "JOB", "STATE", "ATTEMPT", "PROGRESS"]
    assert [line[1] for line in lines[1:]] == ["20260102", "20260101"]


def test_status_without_runs_says_how_to_start(here, capsys):
    assert main(["status"]) == 0
    assert "make submit" in capsys.readouterr().out
    assert main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_status_as_json_has_state_progress_and_metrics(here, capsys):
    run = make_run(here)
    write_json(run.result, {"status": "completed", "metrics": {"eval_accuracy": 0.5}})
    run.progress.write_text('{"step": 42, "total": 50, "epoch": 1, "epochs": 2}')
    assert main(["status", "tiny", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["state"], row["step"], row["job_id"]) == ("completed", 42, None)
    assert row["metrics"] == {"eval_accuracy": 0.5}


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        ({"status": "completed"}, "step 42/50"),
        ({"status": "held", "reason": "stopped on request"}, "at step 42: stopped on request"),
        (None, "step 42/50"),  # its process was killed
        ("running", "step 42/50  93 samples/s  1 s left"),
    ],
)
def test_a_run_that_ended_has_no_speed_and_no_time_left(here, capsys, result, shown):
    run = make_run(here)
    if result == "running":
        run_lock.claim(run, run_lock.this_process(None), 1)
    elif result:
        write_json(run.result, result)
    values = {"step": 42, "total": 50, "samples_per_s": 93.0, "time_left": "1 s"}
    write_json(run.progress, values)
    assert main(["status", "tiny"]) == 0
    assert capsys.readouterr().out.splitlines()[1].endswith(f"  {shown}")


@pytest.mark.parametrize(
    ("result", "slurm_state", "state"),
    [
        ({}, None, "frozen"),
        ({}, "PENDING", "pending"),
        ({}, "NODE_FAIL", "node_fail"),
        ({"status": "held"}, None, "held"),
        ({"status": "held"}, "FAILED", "held"),
        ({"status": "held"}, "PENDING", "pending"),
        ({"status": "completed"}, "TIMEOUT", "completed"),
        ({"status": "completed"}, "RUNNING", "completed"),
    ],
)
def test_the_run_directory_knows_better_than_slurm_how_a_run_ended(
    here, result, slurm_state, state
):
    written = Result(**result) if result else None
    assert status.state_of(make_run(here), written, slurm_state) == state


def test_a_local_run_is_running_while_its_process_lives(here):
    run = make_run(here)
    run_lock.claim(run, run_lock.this_process(None), 1)
    assert status.state_of(run, None, None) == "running"
    record = asdict(run_lock.this_process(None)) | {"pid_start": "1", "attempt": 1}
    write_json(run.owner, record)
    assert status.state_of(run, None, None) == "lost"


@pytest.mark.parametrize(
    ("states", "jobs", "state"),
    [
        (("RUNNING", "PENDING"), "4711, then 4712", "running"),
        (("NODE_FAIL", "PENDING"), "4712", "pending"),
        (("RUNNING", "CANCELLED"), "4711", "running"),
        (("FAILED", "CANCELLED"), "4711", "failed"),
    ],
)
def test_status_shows_the_job_that_waits(guarded, capsys, states, jobs, state):
    guarded(*states)
    assert main(["status"]) == 0
    row = capsys.readouterr().out.splitlines()[1]
    assert f"  {jobs}  {state}  " in row


def test_status_as_json_names_the_successor(guarded, capsys):
    guarded("RUNNING", "PENDING")
    assert main(["status", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["job_id"], row["successor"]) == ("4711", "4712")


def test_status_shows_the_newest_runs_and_how_many_there_are(here, capsys):
    for number in range(status.MAX_LISTED + 2):
        make_run(here, f"202601{number:02d}")
    assert main(["status"]) == 0
    *_, oldest, note = capsys.readouterr().out.splitlines()
    assert oldest.split()[1] == "20260102"
    assert note.startswith("20 of 22 runs") and "--all" in note
    assert main(["status", "--all"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[1] == "20260100"


def test_status_as_json_has_all_runs(here, capsys):
    for number in range(status.MAX_LISTED + 2):
        make_run(here, f"202601{number:02d}")
    assert main(["status", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 22


def test_the_reason_is_read_from_the_log_where_the_disk_was_too_full_to_record_it(here, capsys):
    run = make_run(here)
    append_jsonl(run.attempts, run_files.attempt())
    run.rank_log(0).parent.mkdir()
    error = "StorageError: checkpoints: No space left on device"
    run.rank_log(0).write_text(f"step 1\n12:00:00 trainer: rank 0 on n1: error: {error}\nend\n")
    assert main(["status", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["state"], row["reason"]) == ("stopped", error)
    assert main(["status"]) == 0
    assert error in capsys.readouterr().out


def test_a_run_of_another_kit_is_listed_with_what_it_is(here, capsys):
    old, run = make_run(here, "old", "old"), make_run(here)
    old.spec.write_text("{}")
    old.attempts.write_text('{"attempt": 1}\n')
    assert main(["status", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["old"]["state"] == "unreadable" and "older version" in rows["old"]["reason"]
    assert rows[run.path.parent.name]["state"] == "frozen"
    assert main(["status"]) == 0


def test_status_warns_of_a_start_up_that_is_longer_than_the_slots(here, capsys):
    run = make_run(here)
    for number in (1, 2, 3):
        short: dict[str, Any] = {"attempt": number, "start": 100.0, "stop": 141.0}
        short |= {"cause": "preemption", "decision": "requeue"}
        append_jsonl(run.attempts, run_files.attempt(**short))
    assert main(["status"]) == 0
    assert "3 preemptions in a row before the first optimizer step" in capsys.readouterr().out


def test_a_damaged_run_hides_no_other(here, capsys):
    damaged, run = make_run(here, "20260109"), make_run(here)
    write_json(damaged.result, {"status": "completed", "metrics": {"confusion": [1, 2]}})
    assert main(["status", "--json"]) == 0
    rows = {row["run_id"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["20260109"]["state"] == "unreadable" and "metrics" in rows["20260109"]["reason"]
    assert rows[run.run_id]["state"] == "frozen"
