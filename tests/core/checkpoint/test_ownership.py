"""An attempt is identified by its number and its job."""

import pytest
import torch

from slurm_job_kit.jobs.rundir import RunDir, write_json
from slurm_job_kit.jobs.spec import Spec
from slurm_job_kit.trainer.checkpoint.commit import check_owner
from slurm_job_kit.trainer.errors import Superseded, UserError
from slurm_job_kit.trainer.process.run_handle import find_or_begin_run, share_run
from tests.core import run_files


def test_an_attempt_of_the_same_number_in_another_job_does_not_own_the_run(process_group, tmp_path):
    run_dir = RunDir(tmp_path)
    run_dir.attempt(2).path.mkdir()
    run_dir.spec.write_text(Spec().to_json())
    write_json(run_dir.attempt(2).plan, run_files.plan(job_id="7", attempt=2))
    run = share_run(find_or_begin_run([str(tmp_path)], 2), torch.device("cpu"))
    write_json(run_dir.owner, {"job_id": "7", "attempt": 2})
    check_owner(run)
    for owner in ({"job_id": "8", "attempt": 2}, {"job_id": "7", "attempt": 3}):
        write_json(run_dir.owner, owner)
        with pytest.raises(Superseded, match="this is attempt 2 of job 7"):
            check_owner(run)


def test_a_launch_by_hand_finds_the_run_that_another_host_has_just_made(hosts):
    run, there = RunDir(hosts.here / "run"), RunDir(hosts.there / "run")
    assert not there.path.is_dir()
    run.path.mkdir()
    run.spec.write_text(Spec().to_json())
    with pytest.raises(UserError, match="run is frozen, so train.lr=1 cannot be set"):
        find_or_begin_run([str(there.path), "train.lr=1"], None)
