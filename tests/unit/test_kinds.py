"""The table of kinds: each has its line, and each command can be typed.

`python -m tests.unit.test_kinds` writes kinds.txt, what a user reads about each kind. Other tests
compare kinds, not sentences.
"""

from pathlib import Path

import pytest

from slurm_job_kit.jobs import installation
from slurm_job_kit.jobs.commands.answers.remedies import CHANGES, remedy_of
from slurm_job_kit.jobs.kinds import KINDS, Cause, Kind
from slurm_job_kit.jobs.known_causes import KNOWN_CAUSES
from slurm_job_kit.jobs.spec import Spec

MESSAGES = Path(__file__).with_name("kinds.txt")


def messages():
    """Yield sentence, advice and command of each kind, for a run x with the default spec."""
    for kind, row in KINDS.items():
        remedy = remedy_of(kind, Spec())
        command = installation.command(remedy.command, "x", remedy.change, *remedy.flags)
        yield f"{kind}\n    {row.what}\n    {remedy.text}\n    {command}\n"


def test_what_a_user_reads_about_each_kind():
    assert "".join(messages()) == MESSAGES.read_text(encoding="utf-8")


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


if __name__ == "__main__":
    MESSAGES.write_text("".join(messages()), encoding="utf-8")
