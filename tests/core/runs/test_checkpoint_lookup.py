"""Checkpoints are ordered by their step, also where their names have different lengths."""

import pytest

from slurm_job_kit.jobs.checkpoint.names import checkpoint_name, checkpoint_names, checkpoint_step
from slurm_job_kit.jobs.rundir import RunDir
from slurm_job_kit.jobs.runs import checkpoint_lookup
from tests.core import run_files

STEPS = [0, 99_999_998, 99_999_999, 100_000_000, 100_000_001, 1_000_000_000]


@pytest.fixture
def run(tmp_path):
    return run_files.frozen(tmp_path / "run")


def test_a_name_and_its_step_belong_together():
    assert [checkpoint_step(checkpoint_name(step)) for step in STEPS] == STEPS
    for name in ("step-1", ".tmp-step-00000001", "quarantined-step-00000001", "step-00000001.2"):
        assert checkpoint_step(name) is None


def test_the_newest_checkpoint_has_the_highest_step(run):
    for step in STEPS:
        (run.checkpoints / checkpoint_name(step)).mkdir()
        assert checkpoint_lookup.newest(run, is_users=False) == checkpoint_name(step)
    (run.checkpoints / "latest").touch()
    assert checkpoint_names(run.checkpoints) == [checkpoint_name(step) for step in STEPS[::-1]]


def test_a_run_without_a_folder_of_checkpoints_has_none(tmp_path):
    assert checkpoint_lookup.newest(RunDir(tmp_path / "gone"), is_users=False) is None
