"""The table of kinds: each has its line, and each command can be typed."""

import pytest

from slurm_job_kit.jobs.commands.answers.remedies import CHANGES, remedy_of
from slurm_job_kit.jobs.kinds import KINDS, Cause, Kind
from slurm_job_kit.jobs.known_causes import KNOWN_CAUSES
from slurm_job_kit.jobs.spec import Spec


def test_each_kind_has_one_line_and_each_cause_a_kind():
    assert list(KINDS) == list(Kind)
    assert {row.cause for row in KINDS.values()} == {*Cause, None}
    # What stops an attempt from outside has one name.
    outside = {*Cause} - {Cause.CRASH, Cause.NODE, Cause.LOST}
    assert {Kind(cause) for cause in outside} <= {*Kind}


@pytest.mark.parametrize("kind", Kind)
def test_what_the_table_says_of_a_kind_can_be_printed_and_typed(kind):
    row, remedy = KINDS[kind], remedy_of(kind, Spec())
    assert row.what and row.advice
    assert not row.what.endswith(".") and not row.advice.endswith(".")
    assert "<" not in remedy.change and (row.change in CHANGES or row.change == remedy.change)


def test_the_known_causes_name_kinds_that_a_process_may_have():
    assert all(KINDS[each.kind].cause is not None for each in KNOWN_CAUSES)
    # Of two of one kind the second says in its own words what it is.
    kinds = [each.kind for each in KNOWN_CAUSES if not each.detail]
    assert len(kinds) == len({*kinds})
