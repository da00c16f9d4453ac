"""The decision where a node is at fault: the rows that the plugin adds to the table of the core."""

import dataclasses

import pytest

from slurm_job_kit.jobs.attempt.decision import (
    Action,
    Budget,
    Cause,
    Decision,
    Ending,
    History,
    decide,
)
from slurm_job_kit.jobs.contract.kinds import Kind
from slurm_job_kit.jobs.plugins.nodes.decision import after_fault_of_node
from slurm_job_kit.jobs.plugins.nodes.records import PLUGIN, NodesFound, Reason
from tests.core.attempt.test_decision import FRESH, NOTHING

TERM = ("SIGTERM",)
LOST = {"reasons": (Reason("b", Kind.NODE_FAILURE, "it does not answer", True),)}
BAD = {"reasons": (Reason("b", Kind.BAD_NODE, "wrong sums", True),)}
ONCE = {"reasons": (Reason("b", Kind.UNKNOWN, "ValueError: x", False),)}
FOLLOWED = {"followed": "the same failure on a and b"}
SPARES = {"has_spares": True}


def ended(known, of_plugin):
    plugins = {PLUGIN: NodesFound(**of_plugin)}
    return Ending(dataclasses.replace(NOTHING, plugins=plugins, **known))


# facts that differ from NOTHING, what the plugin knows -> action, cause
TABLE = [
    # Requeue to other nodes. Without other nodes a user has to act.
    ({"error": "rank 1 on b: x"}, BAD, "requeue", "node"),
    ({"job_state": "LOCAL"}, BAD, "hold", "node"),
    ({}, LOST, "requeue", "node"),  # Slurm's word
    ({"would_repeat": True}, LOST, "hold", "crash"),
    ({"would_repeat": True}, BAD, "hold", "crash"),
    ({"outcome": "completed"}, BAD, "done", "completed"),
    ({}, ONCE, "retry", "crash"),
    ({"can_requeue": False}, BAD, "successor", "node"),
    # The job has spare nodes: in this allocation, if there is time.
    ({}, BAD | SPARES, "retry", "node"),
    ({"unreachable_nodes": ("b",)}, SPARES, "retry", "node"),
    ({"is_near_limit": True}, BAD | SPARES, "requeue", "node"),
    ({"unreachable_nodes": ("b",), "signals": TERM}, SPARES, "requeue", "manual_stop"),
    # The run's own failure, although it would leave a node out.
    ({}, BAD | FOLLOWED, "hold", "crash"),
    ({"kind": Kind.HANG}, FOLLOWED, "hold", "hang"),
    ({"signals": TERM}, FOLLOWED, "requeue", "manual_stop"),
]


@pytest.mark.parametrize(
    ("known", "of_plugin", "action", "cause"), TABLE, ids=[str(row[:2]) for row in TABLE]
)
def test_decision(known, of_plugin, action, cause):
    found = ended(known, of_plugin)
    decision = after_fault_of_node(found, decide(found, FRESH), FRESH, Budget())
    assert (decision.action, decision.cause) == (action, cause)
    assert decision.reason


# history (restarts, crashes, attempts) -> action, budget that is used up
BUDGETS = [
    ({}, BAD, (0, 2, 2), "requeue", None),
    ({}, BAD, (0, 0, 4), "hold", Kind.NO_PROGRESS),
    # No list leaves a lost node out: a run that takes down a node at each start is held.
    ({"unreachable_nodes": ("b",)}, LOST, (0, 0, 4), "hold", Kind.NO_PROGRESS),
]


@pytest.mark.parametrize(("known", "of_plugin", "past", "action", "budget"), BUDGETS)
def test_a_run_comes_back_only_so_often(known, of_plugin, past, action, budget):
    found, used = ended(known, of_plugin), History(*past)
    decision = after_fault_of_node(found, decide(found, used), used, Budget())
    assert (decision.action, decision.budget) == (action, budget)


def test_the_kind_of_an_attempt_is_what_speaks_against_its_node():
    for of_plugin, kind in ((BAD, Kind.BAD_NODE), (LOST, Kind.NODE_FAILURE), (ONCE, None)):
        found = ended({"unreachable_nodes": ("b",)}, of_plugin)
        decision = after_fault_of_node(found, decide(found, FRESH), FRESH, Budget())
        assert (decision.cause, decision.kind) == (Cause.NODE, kind)


@pytest.mark.parametrize(("of_plugin", "action"), [(BAD, "requeue"), (LOST, "wait")])
def test_a_preempted_job_with_a_bad_node_is_requeued_by_the_kit(of_plugin, action):
    """Slurm accepts an ExcNodeList only for a pending job."""
    found = ended({"signals": TERM, "is_preempted": True}, of_plugin)
    left_to_slurm = Decision(Action.WAIT, Cause.PREEMPTION, "Slurm does it")
    decision = after_fault_of_node(found, left_to_slurm, FRESH, Budget())
    assert (decision.action, decision.cause) == (action, "preemption")
