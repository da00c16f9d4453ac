"""The records of attempts and the result of a run: what is written, and when."""

import pytest

from slurm_job_kit.jobs.attempt import record_writer
from slurm_job_kit.jobs.attempt.decision import (
    COMPLETED,
    Action,
    Cause,
    Decision,
    Ending,
    History,
    decide,
)
from slurm_job_kit.jobs.base.files import append_jsonl, read_json, read_jsonl
from slurm_job_kit.jobs.contract.spec import Slurm, Spec
from slurm_job_kit.jobs.runs import evidence, fact_reader, run_lock, state
from slurm_job_kit.jobs.slurm import cluster
from tests.core.attempt.attempt_kit import close_lost, entry, own_script, refused
from tests.core.run_files import failed, node, opened, write_json


def stopped_in_startup(run, attempt_dir):
    failed(attempt_dir, 1, 6.0, error="asked to stop during start-up", kind="stopped_in_start_up")
    return evidence.rank_evidence(fact_reader.read(run, 1), "RUNNING", srun_exit=1)


TRAINED = {
    "global_step": 20,
    "epoch": 2,
    "metrics": {"eval_accuracy": 0.5},
    "weights_sha256": "a",
    "optimizer_sha256": "b",
    "best": {"metric": "eval_accuracy", "value": 0.5, "step": 10},
    "exactness": "bitwise",
    "exactness_reason": "one attempt",
}


ME = run_lock.this_process("7")  # the job of every plan here


def test_a_signal_that_only_a_rank_got_in_its_start_up_is_a_stop(run):
    attempt = opened(run, 1)
    node(attempt, 0, torchrun_exit=1)
    node(attempt, 1, torchrun_exit=1)
    seen = stopped_in_startup(run, attempt)
    assert decide(Ending(seen), History()).cause is Cause.MANUAL_STOP


def test_a_rank_that_obeyed_the_sigterm_after_the_death_of_an_agent_explains_nothing(run):
    attempt = opened(run, 1)
    node(attempt, 1, (5.0, "SIGTERM"), torchrun_exit=1)  # from srun: the agent of `a` was killed
    seen = stopped_in_startup(run, attempt)
    decision = decide(Ending(seen), History())
    assert (decision.action, decision.cause) == (Action.RETRY, Cause.CRASH)
    assert "a: no record (killed)" in decision.reason


def purged(run, attempt):
    node(attempt, 0)
    attempt.plan.unlink()


def not_started(run, attempt):
    failed(attempt, 0, 6.0, error="Connection closed by peer", kind="unknown")
    attempt.agent_error(1).write_text("b: launch.python does not exist\n")


def half_written(run, attempt):
    """The rank that found a hang was killed as it wrote its conclusion."""
    failed(attempt, 0, 6.0, error="rank 1: no step", kind="hang")
    attempt.hang.write_text("{")


@pytest.mark.parametrize(
    ("left", "expected"),
    [
        (purged, {"cause": "lost", "job_id": None}),
        (half_written, {"attempt": 1}),
        (not_started, {"why": {"kind": "spec_mistake"}}),
        (
            lambda _, attempt: write_json(attempt.outcome, {"status": "completed"}),
            {"decision": "done"},
        ),
    ],
)
def test_a_lost_attempt_is_closed_by_what_it_left(run, left, expected):
    left(run, opened(run, 1))
    for _ in range(2):
        close_lost(run, ME)
    (record,) = read_jsonl(run.attempts)
    record["why"] = {"kind": record["why"].get("kind")}
    assert {name: record[name] for name in expected} == expected


def test_the_result_has_what_rank_0_knows_and_what_follows_from_all_attempts(run):
    outcome = {"status": "completed", "checkpoint": "step-00000020", **TRAINED}
    write_json(opened(run, 2).outcome, outcome)
    for attempt, span in enumerate(((1, 15), (None, None), (11, 13), (11, 20)), 1):
        append_jsonl(run.attempts, entry(steps=span, attempt=attempt))
    record_writer.write_result(run, fact_reader.read(run, 2), COMPLETED)
    counted = {"attempts": 4, "steps_redone": 5 + 3}
    assert read_json(run.result) == {"status": "completed", **TRAINED, **counted}


def test_the_result_of_a_script_of_ones_own_has_no_key_of_its_marker(run):
    own_script(run)
    write_json(opened(run, 1).outcome, {"status": "completed", "global_step": 7, "metrics": 1})
    record_writer.write_result(run, fact_reader.read(run, 1), COMPLETED)
    counted = {"status": "completed", "attempts": 0, "steps_redone": None}  # steps are unknown
    assert read_json(run.result) == counted
    run.result.unlink()
    run.progress.write_text('{"step": 9}')  # its kit_stop.py reports steps
    record_writer.write_result(run, fact_reader.read(run, 1), COMPLETED)
    assert read_json(run.result) == counted | {"global_step": 9, "steps_redone": 0}


def test_the_result_of_a_complete_run_is_never_replaced(run):
    write_json(run.result, {"status": "completed", "weights_sha256": "a"})
    for action in (Action.DONE, Action.HOLD):
        record_writer.write_result(run, fact_reader.read(run, 1), Decision(action, Cause.LOST, "x"))
    assert read_json(run.result) == {"status": "completed", "weights_sha256": "a"}


@pytest.mark.parametrize(
    ("action", "status"), [(Action.CANCEL, "cancelled"), (Action.HOLD, "held")]
)
def test_an_unfinished_result_says_why_and_where(run, action, status):
    run.progress.write_text('{"step": 15}')
    record_writer.write_result(run, fact_reader.read(run, 1), Decision(action, Cause.CRASH, "why"))
    result = read_json(run.result)
    assert (result["status"], result["reason"], result["global_step"]) == (status, "why", 15)


@pytest.mark.parametrize("marker", [{"status": "stopped", "global_step": 7}, None])
def test_a_script_of_ones_own_may_say_where_it_stopped(run, marker):
    own_script(run)
    attempt = opened(run, 1)
    if marker:
        write_json(attempt.outcome, marker)
    stopped = Decision(Action.HOLD, Cause.INTERRUPTED, "why")
    record_writer.write_result(run, fact_reader.read(run, 1), stopped)
    assert read_json(run.result).get("global_step") == (marker and 7)


@pytest.mark.parametrize(
    ("attempts", "job_id", "decision"),
    [
        ([], "7", "retry"),  # restarted without a user
        ([entry("wait", "lost")] * 3, "7", "retry"),
        ([entry("wait", "lost")] * 4, "7", "hold"),  # restarted several times
        ([entry("wait", "lost")] * 4, "8", "hold"),  # a user has resumed it
    ],
)
def test_a_lost_attempt_counts_unless_somebody_resumed(
    run, monkeypatch, attempts, job_id, decision
):
    for number, record in enumerate(attempts):
        append_jsonl(run.attempts, record | {"attempt": number - 9})
    opened(run, 1)
    me = run_lock.this_process(job_id)
    monkeypatch.setattr(cluster, "is_answering", lambda place, *_: True)
    close_lost(run, me)
    last = read_jsonl(run.attempts)[-1]
    assert (last["decision"], last["cause"]) == (decision, "lost")
    is_refused = refused(run, me) is not None
    assert is_refused == run.result.exists() == (decision == "hold" and job_id == "7")
    assert (state.read(run).word == "held") == (decision == "hold")  # also without a result


def test_a_lost_attempt_counts_against_the_budget_of_the_spec(run, monkeypatch):
    run.spec.write_text(Spec(slurm=Slurm(max_restarts=1)).to_json())
    append_jsonl(run.attempts, entry("requeue", "preemption", progress=True) | {"attempt": 0})
    opened(run, 1)
    monkeypatch.setattr(cluster, "is_answering", lambda place, *_: True)
    close_lost(run, ME)
    last = read_jsonl(run.attempts)[-1]
    assert (last["decision"], last["why"]["budget"]) == ("hold", "max_restarts")
    assert "the batch script was killed" in last["reason"]


@pytest.mark.parametrize("lost", ["a", "b"])
def test_an_attempt_that_was_lost_with_a_node_names_it_in_the_jobs_log(
    run, monkeypatch, capfd, lost
):
    opened(run, 1)
    monkeypatch.setattr(cluster, "is_answering", lambda place, *_: place != lost)
    close_lost(run, ME)
    (last,) = read_jsonl(run.attempts)
    assert (last["decision"], last["cause"]) == ("retry", "node")
    assert last["reason"] == f"no answer from {lost}"
    assert f"attempt 1: node: no answer from {lost}" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("decision", "fields", "refusal"),
    [
        ("hold", {}, "hold: x"),
        ("hold", {"job_id": "6"}, None),
        ("hold", {"job_id": None}, None),  # it is not known
        ("cancel", {}, "cancel: x"),
        ("requeue", {}, None),
        ("hold", {"requeue": "no_answer"}, None),
        ("hold", {"requeue": "refused"}, "hold: x"),
    ],
)
def test_a_job_that_was_held_or_cancelled_starts_again_as_another_one_only(
    run, decision, fields, refusal
):
    append_jsonl(run.attempts, entry(decision, "crash", **fields))
    assert refused(run, ME) == refusal
