"""A run directory for the tests of this folder; some have a fuller one of their own."""

import pytest

from slurm_job_kit.jobs.rundir import RunDir


@pytest.fixture
def run(tmp_path):
    run_dir = RunDir(tmp_path)
    for folder in (run_dir.checkpoints, run_dir.timeline("x").parent):
        folder.mkdir()
    return run_dir
