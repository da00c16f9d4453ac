"""Slurm's time forms: parsed as sbatch(1) documents them, written with clear units."""

import pytest

from slurm_job_kit.jobs.base.console import format_duration
from slurm_job_kit.jobs.slurm import duration


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        ([" ", "4h", "1:2:3:4", "1-", "-1:00", ":30", " 30", "30\n", "٣٠", "9" * 5000], "none of"),
        (["0", "0-00:00:00"], "zero seconds"),
        (["UNLIMITED", "infinite", "-1"], "not supported"),
    ],
)
def test_any_other_text_is_refused(texts, why):
    for text in texts:
        with pytest.raises(ValueError, match=why):
            duration.parse(text)


@pytest.mark.parametrize("written", ["4:00:00", "1-0", "1-0:30", "0", "0:00", "x", "1e3", "-5"])
def test_a_form_with_clear_units_is_not_misread(written):
    assert duration.misreading(written) is None


def test_every_rewrite_that_is_offered_is_read_as_its_hint_claims():
    for written in [*map(str, range(1, 300)), *(f"{m}:{s:02}" for m in range(60) for s in (1, 30))]:
        what, hint = duration.misreading(written) or ("", "")
        first, second = hint.split('"')[1::2]
        assert format_duration(duration.parse(second)) in what
        assert format_duration(duration.parse(first)) in hint
        assert duration.misreading(first) is None
        assert duration.misreading(second) is None
