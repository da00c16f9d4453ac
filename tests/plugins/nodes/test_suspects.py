"""Which nodes the next attempts do without."""

import pytest

from slurm_job_kit.jobs.contract import records
from slurm_job_kit.jobs.contract.kinds import Kind
from slurm_job_kit.jobs.contract.records.ended import AttemptRecord
from slurm_job_kit.jobs.plugins.nodes import suspects
from slurm_job_kit.jobs.plugins.nodes.records import Past, Reason, past_of
from tests.core import run_files
from tests.plugins.nodes.kit import kept


def history(*attempts):
    """Attempts of (node, failure, progress, ...) each, none for an attempt without a reason."""
    lines = []
    for number, (node, failure, has_progress, *decision) in enumerate(attempts):
        reasons = kept(*filter(None, [node]), kind="unknown", failure=failure)
        evidence = {**reasons, "has_progress": has_progress}
        entry = run_files.attempt(evidence, attempt=number, stop=100.0 + number)
        lines.append(entry | ({"decision": decision[0]} if decision else {}))
    return parsed(lines)


def parsed(lines):
    return past_of([records.decode(AttemptRecord, line, "here") for line in lines])


# attempts before -> whether a further reason against a leaves it out
SECOND = [
    ([], False),
    ([("a", "", False)], True),
    ([("b", "", False)], False),
    ([("a", "", False), ("b", "", False)], False),  # the crashes move from node to node
    ([("b", "", False), ("a", "", False)], True),
    ([("a", "", False), (None, "", True)], False),  # an attempt between was well there
    ([("a", "", False, "hold")], False),  # a user resumed
]


@pytest.mark.parametrize(("attempts", "is_left_out"), SECOND)
def test_a_second_reason_in_a_row_leaves_a_node_out_if_there_are_others(attempts, is_left_out):
    before, reason = history(*attempts), Reason("a", Kind.UNKNOWN, "it crashed", False)
    (found,) = suspects.confirmed([reason], before, 0.0, lambda _: True)
    assert (found.node, found.is_left_out) == ("a", is_left_out)
    of_another_kind = Reason("a", Kind.HANG, "it hung", False)
    assert suspects.confirmed([of_another_kind], before, 0.0, lambda _: True) == (of_another_kind,)
    assert suspects.confirmed([reason], before, 0.0, lambda _: False) == (reason,)
    assert suspects.confirmed([reason], before, 200.0, lambda _: True) == (reason,)  # expired


# attempts -> the nodes that are left out
STANDING = [
    ([("a", "x", False), ("b", "", False)], ["b", "a"]),  # newest first
    ([("a", "x", False), ("a", "x", False)], ["a"]),
    ([("a", "x", False), ("b", "x", False)], []),  # it followed the run
    ([("a", "x", False), ("b", "x", False), ("b", "y", False)], ["b"]),
    ([("a", "x", False), (None, "", True), ("b", "x", False)], ["b", "a"]),  # another checkpoint
    ([("a", "x", True), ("b", "x", False)], []),  # its checkpoint came before its failure
    ([("a", "", False), ("b", "", False)], ["b", "a"]),  # nothing shows that it is the same
]


@pytest.mark.parametrize(("attempts", "nodes"), STANDING)
def test_a_failure_that_follows_the_run_clears_the_nodes(attempts, nodes):
    assert list(suspects.left_out(history(*attempts), since=0.0)) == nodes


def test_an_attempt_without_slurm_speaks_against_no_node():
    local = run_files.attempt(kept("a") | {"job_state": "LOCAL"})
    assert list(suspects.left_out(parsed([local]), since=0.0)) == []


# attempts before, present reason, present progress -> whether the failure followed the run
FOLLOWED = [
    ([("a", "x", False), (None, "", False)], ("b", "x"), False, True),  # a preemption between
    ([("a", "x", False)], ("b", "x"), True, False),
    ([("a", "x", False, "hold")], ("b", "x"), False, False),  # a user resumed
]


@pytest.mark.parametrize(("attempts", "present", "progress", "is_followed"), FOLLOWED)
def test_whether_a_failure_followed_the_run(attempts, present, progress, is_followed):
    reason = Reason(present[0], Kind.UNKNOWN, "rank 0: x", False, present[1])
    told = suspects.followed(Past(200.0, False, progress, (reason,)), history(*attempts))
    assert (told is not None) == is_followed
    assert told is None or "a and b" in told


def test_the_next_attempt_in_the_same_allocation_does_without_a_node_that_slurm_marked():
    lost = run_files.attempt(kept("a", kind="node_failure"))
    earlier, last = parsed([run_files.attempt(kept("b")), lost])
    assert suspects.unfit([earlier, last], since=0.0) == {"a", "b"}
    assert suspects.unfit([last, earlier], since=0.0) == {"b"}
