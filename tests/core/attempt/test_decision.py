"""The decision after an attempt: the whole table of cases, and the budgets."""

import dataclasses

import pytest

from slurm_job_kit.jobs import records
from slurm_job_kit.jobs.attempt.decision import (
    Action,
    Budget,
    BudgetUsed,
    Evidence,
    after_same_crash,
    budget_of,
    decide,
    decide_lost,
    with_idle_limits,
    with_unsaved,
)
from slurm_job_kit.jobs.kinds import Kind
from slurm_job_kit.jobs.records.ended import AttemptRecord
from slurm_job_kit.jobs.slurm import job_state
from slurm_job_kit.jobs.spec import Launch, Spec
from tests.core import run_files

FRESH = BudgetUsed(restarts=0, crashes=0, attempts=0)
OVER_LIMIT = {"job_state": "COMPLETING", "job_reason": "TimeLimit"}
NOTHING = Evidence(
    outcome=None,
    job_state="RUNNING",
    job_reason="None",
    signals=(),
    is_preempted=False,
    has_progress=False,
    error=None,
)
TERM, USR1, USR2 = ("SIGTERM",), ("SIGUSR1",), ("SIGUSR2",)

# facts that differ from NOTHING -> action, cause
TABLE = [
    # A complete run is done in any state that Slurm shows.
    ({"outcome": "completed"}, "done", "completed"),
    ({"outcome": "completed", "job_state": "CANCELLED"}, "done", "completed"),
    ({"outcome": "completed", "job_state": "TIMEOUT", "signals": USR1}, "done", "completed"),
    ({"outcome": "completed", "job_state": "LOCAL", "signals": TERM}, "done", "completed"),
    # A cancelled job is never requeued, with or without a save.
    ({"job_state": "CANCELLED"}, "cancel", "cancelled"),
    ({"job_state": "COMPLETING"}, "cancel", "cancelled"),
    ({"job_state": "COMPLETING", "signals": TERM, "outcome": "stopped"}, "cancel", "cancelled"),
    ({"job_state": "COMPLETING", "is_preempted": True}, "cancel", "cancelled"),
    # Requeued by Slurm or an administrator: COMPLETING, too, but the kit must not requeue it again.
    ({"job_state": "COMPLETING", "is_requeued": True}, "wait", "requeued"),
    ({"unreachable_nodes": ("b",), "is_requeued": True}, "wait", "node"),
    ({"unreachable_nodes": ("b",), "job_state": "NODE_FAIL"}, "wait", "node"),
    ({"outcome": "completed", "is_requeued": True}, "done", "completed"),
    # A mistake in the spec that only a rank can find would repeat.
    ({"error": "rank 0 on a: 5 classes", "would_repeat": True}, "hold", "crash"),
    # Warned, and the job still runs: the kit requeues, with or without the marker of a save.
    ({"signals": TERM, "is_preempted": True}, "requeue", "preemption"),
    ({"signals": TERM, "is_preempted": True, "outcome": "stopped"}, "requeue", "preemption"),
    # No preemption by Slurm: a person sent the signal.
    ({"signals": TERM, "outcome": "stopped"}, "requeue", "manual_stop"),
    ({"signals": TERM}, "requeue", "manual_stop"),
    ({"signals": TERM, "error": "rank 1 on b: RuntimeError: x"}, "requeue", "manual_stop"),
    ({"signals": USR1}, "requeue", "time_limit"),
    ({"signals": (*USR1, *TERM)}, "requeue", "time_limit"),
    ({"signals": (*TERM, *USR1)}, "requeue", "manual_stop"),
    ({"signals": USR1, "is_preempted": True}, "requeue", "preemption"),
    # Stopped, although no agent recorded the signal.
    ({"outcome": "stopped"}, "requeue", "manual_stop"),
    ({"kind": Kind.STOPPED_IN_START_UP}, "requeue", "manual_stop"),
    ({"outcome": "stopped", "is_preempted": True}, "requeue", "preemption"),
    ({"is_preempted": True}, "requeue", "preemption"),
    # The end of the time limit does not end the run.
    ({"signals": USR1, "job_reason": "TimeLimit"}, "requeue", "time_limit"),
    # Slurm never requeues a job over its limit: a successor.
    ({"signals": TERM, **OVER_LIMIT}, "successor", "time_limit"),
    ({"signals": USR1, **OVER_LIMIT}, "successor", "time_limit"),
    ({"error": "rank 1 on b: ValueError: x", **OVER_LIMIT}, "successor", "time_limit"),
    ({"job_state": "TIMEOUT"}, "successor", "time_limit"),
    # Slurm ends the job itself, and requeues it.
    ({"signals": TERM, "job_state": "COMPLETING", "job_reason": "NodeDown"}, "wait", "preemption"),
    ({"job_state": "PENDING", "job_reason": "BeginTime"}, "wait", "requeued"),
    ({"signals": TERM, "job_state": "PENDING", "outcome": "stopped"}, "wait", "preemption"),
    ({"job_state": "NODE_FAIL"}, "wait", "requeued"),
    # A crash.
    ({"error": "rank 1 on b: ValueError: x"}, "retry", "crash"),
    ({}, "retry", "crash"),
    ({"has_progress": True}, "retry", "crash"),
    ({"job_state": "LOCAL"}, "retry", "crash"),
    # Too late for a retry: a new attempt might miss the warning of the limit.
    ({"is_near_limit": True, "error": "rank 1 on b: x"}, "requeue", "crash"),
    ({"is_near_limit": True, "can_requeue": False}, "successor", "crash"),
    ({"is_near_limit": True, "would_repeat": True}, "hold", "crash"),
    # A hang counts as a crash; a hang that a warning ended is a stop.
    ({"kind": Kind.HANG, "error": "rank 1 on b: no step in 60 s"}, "retry", "hang"),
    ({"kind": Kind.HANG, "signals": TERM}, "requeue", "manual_stop"),
    ({"kind": Kind.HANG, "job_state": "CANCELLED"}, "cancel", "cancelled"),
    # Out of memory counts as a crash, too.
    ({"kind": Kind.OUT_OF_MEMORY, "error": "rank 0 on a: x"}, "retry", "out_of_memory"),
    # A lost node: requeue to other nodes.
    ({"unreachable_nodes": ("b",), "kind": Kind.HANG}, "requeue", "node"),
    ({"unreachable_nodes": ("b",), "signals": TERM}, "requeue", "manual_stop"),
    ({"unreachable_nodes": ("b",), "job_state": "CANCELLED"}, "cancel", "cancelled"),
    # A job that cannot be requeued: its successor, if there is one, continues.
    ({"can_requeue": False, "signals": TERM}, "successor", "manual_stop"),
    ({"can_requeue": False, "job_state": "NODE_FAIL"}, "successor", "requeued"),
    ({"can_requeue": False}, "retry", "crash"),  # a retry is possible in any case
    # No answer from Slurm, or the job is suspended: the ranks' records decide.
    ({"job_state": "SUSPENDED", "signals": TERM}, "requeue", "preemption"),
    ({"job_state": "UNKNOWN"}, "retry", "crash"),
    # A state of a later Slurm is no end of the job.
    ({"job_state": "HIBERNATING"}, "retry", "crash"),
    ({"job_state": "HIBERNATING", "signals": TERM}, "requeue", "preemption"),
    # A job that waits again, under each of Slurm's names, is requeued already.
    *[({"job_state": state}, "wait", "requeued") for state in sorted(job_state.WAITING)],
    ({"job_state": "UNKNOWN", "signals": TERM}, "requeue", "preemption"),
    ({"job_state": "UNKNOWN", "outcome": "stopped"}, "requeue", "preemption"),
    # Without Slurm nothing restarts a run after a stop.
    ({"job_state": "LOCAL", "signals": TERM, "outcome": "stopped"}, "hold", "interrupted"),
    ({"job_state": "LOCAL", "signals": TERM}, "hold", "interrupted"),
    ({"job_state": "LOCAL", "outcome": "stopped"}, "hold", "interrupted"),
    ({"job_state": "LOCAL", "kind": Kind.STOPPED_IN_START_UP}, "hold", "interrupted"),
]


@pytest.mark.parametrize(("known", "action", "cause"), TABLE, ids=[str(row[0]) for row in TABLE])
def test_decision(known, action, cause):
    decision = decide(dataclasses.replace(NOTHING, **known), FRESH)
    assert decision.action == action
    assert cause is None or decision.cause == cause
    assert decision.reason


# evidence, history (restarts, crashes, attempts) -> action, budget that is used up
BUDGETS = [
    ({}, (0, 1, 1), "retry", None),
    ({}, (0, 2, 2), "hold", Kind.MAX_CRASHES),
    ({"kind": Kind.OUT_OF_MEMORY}, (0, 2, 2), "hold", Kind.MAX_CRASHES),
    ({"unreachable_nodes": ("b",)}, (0, 0, 4), "hold", Kind.NO_PROGRESS),
    ({"is_requeued": True}, (0, 0, 4), "hold", Kind.NO_PROGRESS),
    ({"kind": Kind.HANG}, (0, 2, 2), "hold", Kind.MAX_CRASHES),
    ({}, (0, 0, 4), "hold", Kind.NO_PROGRESS),
    ({"signals": TERM}, (0, 2, 3), "requeue", None),
    # Preemptions and stops by hand hold a run only if its restarts are used up.
    ({"signals": TERM, "is_preempted": True}, (0, 2, 4), "requeue", None),
    ({"signals": TERM, "is_preempted": True}, (200, 0, 0), "hold", Kind.MAX_RESTARTS),
    ({"signals": TERM}, (200, 0, 0), "hold", Kind.MAX_RESTARTS),
    # Also a time limit that is shorter than the start-up.
    ({"signals": USR1}, (0, 0, 3), "requeue", None),
    ({"signals": USR1}, (0, 0, 4), "hold", Kind.NO_PROGRESS),
    (OVER_LIMIT, (0, 0, 4), "hold", Kind.NO_PROGRESS),
    ({"signals": TERM, "has_progress": True}, (199, 0, 0), "requeue", None),
    ({"signals": TERM, "has_progress": True}, (200, 0, 0), "hold", Kind.MAX_RESTARTS),
    ({"has_progress": True}, (200, 0, 0), "retry", None),
    ({"unreachable_nodes": ("n1",), "has_progress": True}, (200, 0, 0), "hold", Kind.MAX_RESTARTS),
    ({"outcome": "completed"}, (200, 2, 4), "done", None),
    ({"job_state": "CANCELLED"}, (200, 2, 4), "cancel", None),
]


@pytest.mark.parametrize(("known", "past", "action", "budget"), BUDGETS)
def test_a_run_comes_back_only_so_often(known, past, action, budget):
    decision = decide(dataclasses.replace(NOTHING, **known), BudgetUsed(*past))
    assert (decision.action, decision.budget) == (action, budget)


# evidence, history -> action, for a run whose ranks are a script
SCRIPT = [
    ({"signals": USR1}, (199, 2, 50), "requeue"),
    ({"signals": USR1}, (200, 0, 0), "hold"),
    ({"is_requeued": True}, (0, 0, 50), "wait"),
    ({}, (0, 2, 2), "hold"),
    ({"has_progress": True}, (0, 2, 2), "retry"),
]


@pytest.mark.parametrize(("known", "past", "action"), SCRIPT)
def test_time_limits_and_preemptions_of_a_script_count_as_restarts_only(known, past, action):
    budget = budget_of(Spec(launch=Launch(script="x.py")))
    decision = decide(dataclasses.replace(NOTHING, **known), BudgetUsed(*past), budget)
    assert decision.action == action


def test_the_hold_of_a_crashing_script_names_what_counts_as_progress():
    seen = dataclasses.replace(NOTHING, error="rank 1 on b exited with code 1")
    budget = budget_of(Spec(launch=Launch(script="x.py")))
    assert decide(seen, BudgetUsed(0, 2, 2), budget).reason == (
        "3 crashes within 24 hours without a step saved by kit_stop.py, or a file in "
        "KIT_CHECKPOINT_DIR: rank 1 on b exited with code 1"
    )
    assert "without a new checkpoint" in decide(seen, BudgetUsed(0, 2, 2)).reason


def test_the_budgets_can_be_set():
    assert decide(NOTHING, FRESH, Budget(crashes=1)).action is Action.HOLD


MINE = {"error": "rank 1 on n2 exited with code 1: TypeError: f() 7", "kind": Kind.USER_CODE}
SAME = "rank 0 on n1 exited with code 1: TypeError: f() 12"
# What another attempt may not meet.
OUTSIDE = (
    "rank 0 on n1: requests.exceptions.ConnectionError: HTTPSConnectionPool(host='hub', port=443)",
    "rank 0 on n1: TimeoutError: timed out",
    "rank 0 on n1: urllib.error.HTTPError: HTTP Error 503: Service Unavailable",
    "rank 0 on n1: OSError: [Errno 5] Input/output error: '/scratch/x'",
    "rank 0 on n1: json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
    "rank 0 on n1: RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
    "rank 0 on n1: RuntimeError: No CUDA GPUs are available",
    "n1: setup: exit code 6: curl: (6) Could not resolve host: data",
)
# evidence, the error, decision and seconds of the attempt before, own seconds -> whether it holds
TWICE = [
    (MINE, SAME, "retry", 9, 9, True),
    (MINE | {"kind": Kind.SPEC_MISTAKE}, SAME, "retry", 9, 9, True),
    (MINE, SAME, "retry", 9, 61, False),
    (MINE, SAME, "retry", 61, 9, False),
    (MINE, "rank 0 on n1 exited with code 1: KeyError: 'x'", "retry", 9, 9, False),
    (MINE, SAME, "hold", 9, 9, False),  # a user resumed
    (MINE | {"has_progress": True}, SAME, "retry", 9, 9, False),
    (MINE | {"kind": Kind.COLLECTIVE}, SAME, "retry", 9, 9, False),  # may pass by itself
    (MINE | {"signals": TERM}, SAME, "retry", 9, 9, False),
    *((MINE | {"error": each}, each, "retry", 9, 9, False) for each in OUTSIDE),
]


def past(**fields):
    """The record of an attempt."""
    return records.decode(AttemptRecord, run_files.attempt(**fields), "here")


@pytest.mark.parametrize(("known", "error", "decision", "before_s", "ran_s", "holds"), TWICE)
def test_the_same_failure_of_two_starts_within_a_minute_is_not_tried_again(
    known, error, decision, before_s, ran_s, holds
):
    seen = dataclasses.replace(NOTHING, **known)
    last = past(evidence={"error": error}, decision=decision, start=100.0, stop=100.0 + before_s)
    decided = decide(seen, FRESH)
    after = after_same_crash(decided, seen, last, ran_s)
    assert (after.action is Action.HOLD) == holds and after.cause == decided.cause
    assert ("two starts failed alike" in after.reason) == holds
    assert after_same_crash(decided, seen, None, ran_s) == decided
    stepped = dataclasses.replace(last, first_step=1, last_step=3)
    assert after_same_crash(decided, seen, stepped, ran_s) == decided


# evidence, whether it was killed -> words, and words that are missing
UNSAVED = [
    ({"signals": USR1}, True, "raise slurm.signal_lead_s, now 120", "site"),
    (OVER_LIMIT, True, "raise slurm.signal_lead_s, now 120", "site"),
    ({"signals": TERM, "is_preempted": True}, True, "killed 41 s after the warning", "lead_s"),
    ({"signals": TERM}, True, "killed 41 s after the warning, before it could save", "site"),
    ({"signals": TERM, "error": "rank 0: disk full"}, False, "save: rank 0: disk full", "lead_s"),
    ({"signals": USR1, "error": "rank 0: disk full"}, False, "save: rank 0: disk full", "lead_s"),
    ({"error": "rank 0: x"}, False, "", "save"),
]


@pytest.mark.parametrize(("known", "is_killed", "words", "without"), UNSAVED)
def test_the_remedy_of_a_stop_that_saved_nothing_follows_from_its_cause(
    known, is_killed, words, without
):
    seen = dataclasses.replace(NOTHING, **known)
    reason = with_unsaved(decide(seen, FRESH), seen, is_killed, 120, 41.2).reason
    assert words in reason and without not in reason


def test_a_killed_batch_script_says_what_the_warning_gave():
    seen = dataclasses.replace(NOTHING, job_state="LOST", signals=TERM)
    lost = decide_lost(seen, FRESH, Budget(), is_automatic=True)
    assert "killed 40 s after the warning" in with_unsaved(lost, seen, True, 120, 40.0).reason
    unwarned = dataclasses.replace(seen, signals=())
    assert with_unsaved(lost, unwarned, True, 120, None) == lost


def test_time_limits_before_a_step_are_a_hang_which_holds():
    seen = dataclasses.replace(NOTHING, signals=USR1)
    limit, idle = decide(seen, FRESH), past(cause="time_limit")
    saving = dataclasses.replace(seen, has_progress=True)  # a script that reports no step
    saved = past(cause="time_limit", evidence={"has_progress": True})
    assert with_idle_limits(limit, saving, [idle, idle], Budget()) == limit
    ends = [
        ([], "requeue", "time_limit", None),  # it may have begun late
        ([idle], "requeue", "time_limit", Kind.HANG),
        ([idle, idle], "hold", "hang", Kind.HANG),
        ([idle, idle, past(cause="time_limit", start_s=9.0)], "requeue", "time_limit", None),
        ([idle, past(cause="time_limit", decision="hold")], "requeue", "time_limit", None),
        ([idle, saved], "requeue", "time_limit", None),
    ]
    for before, *expected in ends:
        found = with_idle_limits(limit, seen, before, Budget())
        assert [found.action, found.cause, found.kind] == expected
        words = "2 attempts" if expected[1:] == ["time_limit", Kind.HANG] else "no rank has done a"
        assert words in found.reason
    left = dataclasses.replace(seen, kind=Kind.STOPPED_IN_START_UP)
    assert "the stacks are in" in with_idle_limits(limit, left, [], Budget()).reason
    once = Budget(crashes=1)
    assert with_idle_limits(limit, seen, [], once).action is Action.REQUEUE
