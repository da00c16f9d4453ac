"""The command why: the cause of each end, its evidence, and what to do."""

import pytest

from slurm_job_kit.jobs.base.files import append_jsonl
from slurm_job_kit.jobs.contract import records
from slurm_job_kit.jobs.contract.records.frozen import Provenance
from tests.core import run_files
from tests.core.run_files import make_code, opened, write_json

HELD = {"decision": "hold"}


@pytest.mark.parametrize(
    ("fields", "evidence", "error", "kind"),
    [
        ({"cause": "time_limit"}, {}, None, "time_limit"),
        ({"cause": "interrupted"} | HELD, {}, None, "interrupted"),
        ({"cause": "requeued"}, {"job_state": "NODE_FAIL"}, None, "node_failure"),
        ({"cause": "node"}, {"unreachable_nodes": ["b"]}, None, "node_failure"),
        ({"cause": "lost"}, {"job_state": "LOST"}, None, "batch_script_killed"),
        ({"cause": "out_of_memory"}, {"kind": "gpu_out_of_memory"}, None, "gpu_out_of_memory"),
        (HELD, {}, {"kind": "disk_full", "would_repeat": True}, "disk_full"),
        (HELD, {}, {"kind": "process_killed", "exit_code": -9}, "process_killed"),
        (HELD, {}, {"caused_by_peer": True}, "collective"),
        (HELD, {}, {}, "unknown"),
    ],
)
def test_an_attempt_has_the_kind_of_what_ended_it(story, fields, evidence, error, kind):
    story.attempt(evidence=evidence, **fields)
    if error is not None:
        story.error(**error)
    assert story.why()["cause"] == kind


def test_the_place_of_a_mistake_in_the_code_is_the_users_own_line(story, here):
    checkout = make_code(here, story.run, model="raise ValueError('x')")
    frozen = story.run.code.resolve() / "model.py"
    known = Provenance("x", None, None, "", "", "", {}, repository=str(checkout))
    records.write(story.run.provenance, known)
    trace = f'  File "{frozen}", line 1, in f\n  File "/x/site-packages/torch/a.py", line 9, in g\n'
    story.attempt(decision="hold", evidence={"error": "rank 1 on b: ValueError: x"})
    story.error(kind="user_code", traceback=f"Traceback\n{trace}ValueError: x")
    assert story.why()["place"] == f"{checkout / 'model.py'}:1"
    assert "\n  at: checkout/model.py:1\n" in story.text()
    (checkout / "model.py").unlink()
    assert story.why()["place"] == f"{frozen}:1"


def test_a_hang_names_where_the_rank_is_that_the_others_wait_for(story):
    text = "no progress for 9 s: rank 1 on b (pid 7) is at x.py:3 f, in batch of step 5"
    story.attempt(cause="hang", decision="hold", evidence={"kind": "hang", "error": text})
    folder = story.run.attempt(1)
    hang = {"rank": 0, "error": text, "unresponsive": [], "waited_for": [1]}
    write_json(folder.hang, hang | {"place": "/home/me/x.py:3"})
    answer = story.why()
    assert answer["cause"] == "hang" and text in answer["text"]
    assert (answer["place"], answer["log"]) == ("/home/me/x.py:3", str(folder.rank_log(1)))


def test_a_killed_rank_is_named_although_its_peers_only_lost_it(story):
    story.attempt(decision="hold", evidence={"error": "rank 1 on b died without an error record"})
    story.error(rank=0, caused_by_peer=True)
    for rank, host in enumerate(("a", "b")):
        event = {"t": 1.0, "event": "spawn", "attempt": 1, "host": host}
        append_jsonl(story.run.timeline(f"rank-{rank:05d}"), event)
    answer = story.why()
    assert answer["cause"] == "process_killed" and "rank 1 on b died" in answer["text"]


@pytest.mark.parametrize(
    ("agent", "kind", "cause"),
    [
        ({"torchrun_exit": -9, "end": 2.0}, None, "process_killed"),
        # As a torchrun's that saw another process in the rendezvous: the others are then killed.
        ({"torchrun_exit": -9, "end": 2.0}, "node_failure", "node_failure"),
        (None, None, "spec_mistake"),
    ],
)
def test_a_torchrun_was_killed_or_not_started(story, agent, kind, cause):
    story.attempt(decision="hold", evidence={"error": "b: setup line 1: exit 3", "kind": kind})
    if agent is None:
        story.run.attempt(1).agent_error(1).write_text("b: setup line 1: exit 3\n")
    else:
        run_files.node(story.run.attempt(1), 1, host="b", **agent)
    answer = story.why()
    assert answer["cause"] == cause and "setup line 1" in answer["text"]


@pytest.mark.parametrize(
    ("budget", "kind", "advice"),
    [
        ("not_requeued", "preemption", "resume queues another job"),
        ("max_restarts", "preemption", "allow more restarts"),
        ("max_crashes", "user_code", "correct the code"),
    ],
)
def test_what_to_do_about_a_hold_is_the_budgets_or_the_causes(story, budget, kind, advice):
    cause = "crash" if kind == "user_code" else kind
    words = "preempted; NOT requeued: error: Invalid qos specification"
    story.attempt(cause=cause, decision="hold", budget=budget, reason=words)
    if cause == "crash":
        story.error(kind=kind)
    story.held()
    answer = story.why()
    assert answer["cause"] == kind
    assert words in answer["text"] and answer["advice"].startswith(advice)


def test_a_cancelled_run_says_so(queued):
    story = queued("CANCELLED")
    story.attempt(cause="cancelled", decision="cancel")
    write_json(story.run.result, {"status": "cancelled", "attempts": 1})
    assert story.why()["cause"] == "cancelled"
    story.run.cancelled.write_text("2026-01-01 10:00:00: jobs cancel: 7\n")
    answer = story.why()
    assert answer["cause"] == "cancelled" and "2026-01-01 10:00:00" in answer["text"]


def test_a_pending_job_has_its_reason_explained(queued, slurm):
    story = queued("PENDING")
    slurm.answer("scontrol", "   JobState=PENDING Reason=Resources Dependency=(null)\n")
    story.attempt(cause="preemption", decision="requeue")
    answer = story.why()
    assert answer["cause"] == "pending"
    assert "the nodes that it asks for are in use" in answer["text"]


def test_without_an_answer_of_slurm_a_run_with_a_job_is_unknown(queued, slurm):
    story = queued("RUNNING")
    story.attempt(cause="lost")
    story.run.attempts.unlink()
    story.run.job_log.write_text("step 7\n")
    slurm.answer("squeue", error="Unable to contact slurm controller\n", status=1)
    answer = story.why()
    assert answer["last_lines"] == []  # what the log ends with is no reason
    assert answer["cause"] == "unknown"
    assert "Slurm does not answer whether job 7 still runs" in answer["text"]
    assert "make why" in answer["next"]
    story.run.cancelled.write_text("2026-01-01 10:00:00: jobs cancel: 7\n")
    assert story.why()["cause"] == "cancelled"


def test_without_an_answer_of_slurm_the_record_of_the_end_counts(queued, slurm):
    story = queued("RUNNING")
    slurm.answer("squeue", error="Unable to contact slurm controller\n", status=1)
    story.attempt(decision="hold", evidence={"error": "x"}, job_id="7")
    story.error(kind="user_code")
    assert story.why()["cause"] == "user_code"
    write_json(story.run.submission, {"job_id": "8"})  # resumed
    assert story.why()["cause"] == "unknown"


def test_a_running_job_shows_its_progress_and_a_suspended_one_that_it_waits(queued, slurm):
    story = queued("RUNNING")
    story.run.progress.write_text('{"step": 42, "total": 50}')
    answer = story.why()
    assert answer["cause"] == "running" and "step 42/50" in answer["text"]
    assert story.text().count("\n") == 1  # there is nothing to do
    attempt = opened(story.run)
    for path in (attempt.rank_log(0), attempt.rank_log(1), attempt.rank_ended(1)):
        path.touch()
    ends = "step 42/50; rank 1 exited with code 0, and rank 0 did not: if it stays silent, the run"
    assert f"{ends} is held as done" in story.why()["text"]
    slurm.set_state("7", "SUSPENDED")
    assert story.why()["cause"] == "pending"


@pytest.mark.parametrize(
    ("state", "record", "cause"),
    [
        ("TIMEOUT", None, "time_limit"),
        ("NODE_FAIL", None, "node_failure"),
        ("FAILED", None, "batch_script_killed"),
        # a scancel between two starts
        ("CANCELLED", {"cause": "preemption", "decision": "requeue"}, "cancelled"),
    ],
)
def test_slurms_end_state_counts_where_the_batch_script_recorded_no_end(
    queued, state, record, cause
):
    story = queued(state)
    story.attempt(job_id="7", **record or {"cause": "lost"})
    if record is None:
        story.run.attempts.unlink()
    answer = story.why()
    assert answer["cause"] == cause and "make resume" in answer["next"]


def test_a_job_that_only_ends_after_a_hold_is_not_called_running(queued, slurm):
    story = queued("RUNNING")
    slurm.set_state("8", "RUNNING")
    story.attempt(decision="hold", evidence={"error": "x"}, job_id="7")
    story.error(kind="user_code")
    story.held()
    assert story.why()["cause"] == "user_code"
    write_json(story.run.submission, {"job_id": "8"})  # resumed
    answer = story.why()
    assert answer["cause"] == "running" and "attempt 1 ended: " in answer["text"]


@pytest.mark.parametrize(
    ("state", "log", "cause"),
    [
        ("FAILED", "2026-01-01 10:00:00 error: x: job 6 is still running it", "refused"),
        ("FAILED", "srun: error: n1: task 0: Killed", "unknown"),
        # it was cancelled first, and its batch script refused to train
        ("CANCELLED", "2026-01-01 10:00:00 error: x: not started again", "cancelled"),
    ],
)
def test_a_job_that_ended_before_its_attempt_shows_the_error_of_its_log(queued, state, log, cause):
    story = queued(state, job_id="7")
    story.run.job_log.write_text(f"{log}\n")
    if cause == "cancelled":
        story.run.cancelled.write_text("2026-01-01 10:00:00: jobs cancel: 7\n")
    answer = story.why()
    assert answer["cause"] == cause
    assert ("job 6 is still running it" in answer["text"]) == (cause == "refused")


def test_a_job_whose_node_cannot_open_its_directory_is_shown_with_the_path(queued, slurm):
    story = queued("FAILED")
    path = story.run.path
    slurm.set_queued("7", "N/A|UNLIMITED|2|stn[1-2]|JobLaunchFailure")
    answer = story.why()
    assert "job 7 as FAILED (JobLaunchFailure), before it began an attempt" in answer["text"]
    assert f"perhaps stn[1-2] cannot open {path}" in answer["text"]
    assert "a runs_root that every host has" in answer["advice"]


def test_a_resumed_run_whose_job_was_not_launched_names_that_and_not_its_last_attempt(
    queued, slurm
):
    story = queued("FAILED", job_id="8")
    story.attempt(cause="crash", decision="hold", job_id="7", evidence={"error": "x"})
    story.run.job_log.write_text("of job 7\n")
    slurm.set_state("8", "FAILED")
    slurm.set_queued("8", "N/A|UNLIMITED|1|stn1|JobLaunchFailure")
    answer = story.why()
    assert answer["cause"] == "refused" and "job 8 as FAILED (JobLaunchFailure)" in answer["text"]


def test_a_run_that_lost_its_spec_names_the_file(story):
    story.attempt(cause="preemption", decision="requeue")
    story.run.spec.unlink()
    (story.run.path / "code").symlink_to("nowhere")
    answer = story.why()
    assert answer["cause"] == "files_missing" and "spec.json is gone" in answer["text"]
