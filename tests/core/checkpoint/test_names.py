"""A checkpoint of a run is found by each of its names."""

import pytest

from slurm_job_kit.jobs.base.errors import UserError
from slurm_job_kit.jobs.contract.checkpoint.names import find_checkpoint


@pytest.fixture
def saved(tmp_path):
    for step in (10, 20, 30):
        (tmp_path / f"step-{step:08d}").mkdir()
    (tmp_path / "best").write_text("step-00000020\n")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "name"),
    [
        *(("latest", "step-00000030"), ("best", "step-00000020"), ("10", "step-00000010")),
        *(("step-20", "step-00000020"), ("step-00000020", "step-00000020")),
    ],
)
def test_a_checkpoint_is_found_by_each_of_its_names(saved, text, name):
    assert find_checkpoint(saved, text) == name


@pytest.mark.parametrize(
    ("text", "best"),
    [
        *((text, "") for text in ("11", "step-11", "../x", "aside-step-00000010", "")),
        *(("best", text) for text in ("", "x", "step-00000099\n", "../x", "\udcff\0")),
    ],
)
def test_an_unknown_checkpoint_is_named_with_those_that_exist(saved, text, best):
    (saved / "best").write_text(best, errors="surrogateescape")
    names = "step-00000030, step-00000020, step-00000010"
    with pytest.raises(UserError, match=f"has no checkpoint {text}\n  hint: it has {names}"):
        find_checkpoint(saved, text)
