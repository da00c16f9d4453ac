"""The decision after an attempt: the whole table of cases, and the budgets."""

import dataclasses

import pytest

from slurm_job_kit.jobs.attempt.decision import (
    Action,
    Ending,
    Evidence,
    History,
    budget_of,
    decide,
    history_of,
)
from slurm_job_kit.jobs.contract.kinds import Kind
from slurm_job_kit.jobs.contract.spec import Launch, Spec
from slurm_job_kit.jobs.slurm import job_state
from tests.core import run_files
from tests.core.attempt.attempt_kit import parsed

FRESH = History(restarts=0, crashes=0, attempts=0)
LOST = {"job_state": "LOST"}
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


def ended(**known):
    """The end of an attempt with facts that differ from NOTHING, or fields of Ending."""
    of_ending = {name: known.pop(name) for name in {*known} - {*vars(NOTHING)}}
    return Ending(dataclasses.replace(NOTHING, **known), **of_ending)


TERM, USR1 = ("SIGTERM",), ("SIGUSR1",)

# the arguments of ended() -> action, cause
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
    # Slurm gave the retry no step. A quick end is a crash, and one where Slurm does not answer.
    ({"got_no_step": True}, "requeue", "node"),
    ({"got_no_step": True, "can_requeue": False}, "successor", "node"),
    ({"got_no_step": True, "is_quick": True}, "retry", "crash"),
    ({"got_no_step": True, "job_state": "UNKNOWN"}, "retry", "crash"),
    # The batch script was killed, and a later start records the attempt.
    (LOST, "retry", "lost"),
    (LOST | {"unreachable_nodes": ("b",)}, "retry", "node"),
    (LOST | {"signals": TERM, "error": "x"}, "retry", "lost"),
    (LOST | {"is_automatic": False}, "hold", "lost"),  # a user resumed: the budgets begin again
    (LOST | {"is_automatic": False, "outcome": "completed"}, "done", "completed"),
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
    decision = decide(ended(**known), FRESH)
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
    (LOST, (0, 0, 4), "hold", Kind.NO_PROGRESS),
    ({"signals": TERM, "has_progress": True}, (199, 0, 0), "requeue", None),
    ({"signals": TERM, "has_progress": True}, (200, 0, 0), "hold", Kind.MAX_RESTARTS),
    ({"has_progress": True}, (200, 0, 0), "retry", None),
    ({"unreachable_nodes": ("n1",), "has_progress": True}, (200, 0, 0), "hold", Kind.MAX_RESTARTS),
    ({"outcome": "completed"}, (200, 2, 4), "done", None),
    ({"job_state": "CANCELLED"}, (200, 2, 4), "cancel", None),
]


@pytest.mark.parametrize(("known", "past", "action", "budget"), BUDGETS)
def test_a_run_comes_back_only_so_often(known, past, action, budget):
    decision = decide(ended(**known), History(*past))
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
    decision = decide(ended(**known), History(*past), budget)
    assert decision.action == action


# evidence, cause, decision and seconds of the attempt before, whether this one is quick -> holds
QUICK = [
    ({}, "crash", "retry", 9, True, True),
    ({"kind": Kind.OUT_OF_MEMORY}, "hang", "requeue", 9, True, True),
    ({}, "crash", "retry", 9, False, False),
    ({}, "crash", "retry", 61, True, False),
    ({}, "preemption", "requeue", 9, True, False),
    ({}, "crash", "hold", 9, True, False),  # a user resumed
    ({"has_progress": True}, "crash", "retry", 9, True, False),
    ({"signals": TERM}, "crash", "retry", 9, True, False),
]


@pytest.mark.parametrize(("known", "cause", "decision", "before_s", "is_quick", "holds"), QUICK)
def test_two_crashes_in_a_row_within_a_minute_of_each_start_hold(
    known, cause, decision, before_s, is_quick, holds
):
    fields = {"cause": cause, "decision": decision, "start": 100.0, "stop": 100.0 + before_s}
    ending = ended(is_quick=is_quick, **known)
    decided = decide(ending, history_of(parsed([run_files.attempt(**fields)])))
    assert ("two attempts in a row crashed" in decided.reason) == holds
    assert (decided.action is Action.HOLD) == holds
    stepped = parsed([run_files.attempt(first_step=1, last_step=3, **fields)])
    assert decide(ending, history_of(stepped)).action is not Action.HOLD


# evidence, whether it was killed -> the end of the reason, the kind
UNSAVED = [
    ({"signals": USR1}, True, "; killed before the save finished", Kind.NOT_SAVED),
    (OVER_LIMIT, True, "; killed before the save finished", Kind.NOT_SAVED),
    ({"signals": TERM, "is_preempted": True}, True, "; killed before the save finished", None),
    ({"signals": TERM, "error": "rank 0: full"}, False, "without saving: rank 0: full", None),
    ({"signals": USR1}, False, "; the ranks exited without saving", None),
    ({"signals": TERM, "outcome": "stopped"}, False, "does not preempt the job", None),
    ({"error": "rank 0: x"}, True, "rank 0: x", None),
]


@pytest.mark.parametrize(("known", "is_killed", "words", "kind"), UNSAVED)
def test_a_stop_that_saved_nothing_has_the_reason(known, is_killed, words, kind):
    silent = {"b": None} if is_killed else {}
    decision = decide(ended(saves_steps=True, silent=silent, **known), FRESH)
    assert decision.reason.endswith(words) and decision.kind is kind
