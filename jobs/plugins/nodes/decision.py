"""The decision after an attempt, where a node is at fault: a pure function.

Its table is tests/plugins/nodes/test_decision.py.
"""

from dataclasses import replace

from ...attempt import decision as rules
from ...attempt.decision import Action, Budget, Cause, Decision, Ending, History
from ...base.log_text import first_line
from ...contract.kinds import Kind
from .records import NodesFound, found_in


def after_fault_of_node(
    ending: Ending, decision: Decision, history: History, budget: Budget
) -> Decision:
    """Return the decision of the core, or another one where a node is at fault."""
    found = ending.evidence
    mine = found_in(found)
    decided = _decide(ending, mine, decision)
    if decided is not decision:
        decided = rules.within_budget(decided, found, history, budget)
    is_of_node = decided.cause is Cause.NODE and mine.kinds
    return replace(decided, kind=mine.kinds[0]) if is_of_node else decided


def _decide(ending: Ending, mine: NodesFound, decision: Decision) -> Decision:
    found = ending.evidence
    is_ours = ending.has_allocation and not found.is_requeued
    if ending.is_lost:
        return decision
    if decision.action is Action.WAIT and is_ours and {*mine.kinds} - {Kind.NODE_FAILURE}:
        # Slurm itself gives a failed node to no job. It accepts an ExcNodeList only for a pending
        # job: the kit requeues it first.
        return rules.after_warning(ending)
    if decision.cause not in rules.CRASHES and not (decision.cause is Cause.NODE and is_ours):
        return decision
    if mine.followed:
        return Decision(Action.HOLD, rules.crash_cause(found), mine.followed)
    if not found.unreachable_nodes and (found.would_repeat or not mine.kinds):
        return decision
    # It starts on other nodes: in this allocation, if it has enough.
    reason = first_line(found.error or "")
    if not reason and found.unreachable_nodes:
        reason = rules.no_answer(found)
    reason = reason or "; ".join(f"{each.node}: {each.text}" for each in mine.reasons)
    if found.job_state == "LOCAL":
        return Decision(Action.HOLD, Cause.NODE, reason)
    if mine.has_spares and not found.is_near_limit:
        return Decision(Action.RETRY, Cause.NODE, reason)
    return rules.start_again(ending, Cause.NODE, reason)
