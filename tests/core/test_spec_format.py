"""A run directory of another version of the kit is refused by that name, with a hint."""

import json

import pytest

from slurm_job_kit.jobs.rundir import FORMAT
from slurm_job_kit.jobs.runs import scratch_purge
from slurm_job_kit.jobs.spec import FormatError, Spec


def test_a_spec_carries_the_format_of_its_run_directory(run):
    assert json.loads(run.spec.read_text())["format"] == FORMAT
    assert Spec.read(run.spec) == Spec()


@pytest.mark.parametrize(
    ("number", "whose", "hint"),
    [(None, "an older version", "submit it again"), (FORMAT + 1, "a newer version", "update")],
)
def test_a_run_of_another_kit_is_named_and_never_called_damaged(run, number, whose, hint):
    values = json.loads(run.spec.read_text()) | {"format": number, "key_of_that_kit": 1}
    if number is None:
        del values["format"]
    run.spec.write_text(json.dumps(values))
    for read in (lambda: Spec.read(run.spec), lambda: scratch_purge.check(run)):
        with pytest.raises(FormatError) as raised:
            read()
        text = str(raised.value)
        assert str(run.path) in text and whose in text and f"hint: {hint}" in text
        assert "damaged" not in text
