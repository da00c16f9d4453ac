"""An attempt is identified by its number and its job."""

import pytest
import torch

from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.contract.spec import Spec
from slurm_job_kit.trainer.checkpoint.commit import check_owner
from slurm_job_kit.trainer.errors import Superseded, UserError
from slurm_job_kit.trainer.process.run_handle import find_run, share_run
from tests.core import run_files
from tests.core.run_files import write_json


def test_an_attempt_of_the_same_number_in_another_job_does_not_own_the_run(process_group, tmp_path):
    run_dir = RunDir(tmp_path)
    run_dir.attempt(2).path.mkdir()
    run_dir.spec.write_text(Spec().to_json())
    write_json(run_dir.attempt(2).plan, run_files.plan(job_id="7", attempt=2))
    run = share_run(find_run([str(tmp_path)], 2), torch.device("cpu"))
    write_json(run_dir.owner, {"job_id": "7", "attempt": 2})
    check_owner(run)
    for owner in ({"job_id": "8", "attempt": 2}, {"job_id": "7", "attempt": 3}):
        write_json(run_dir.owner, owner)
        with pytest.raises(Superseded, match="this is attempt 2 of job 7"):
            check_owner(run)


@pytest.mark.parametrize("words", [["x.yaml"], ["{run}", "train.lr=1"], []])
def test_other_words_than_a_run_directory_are_refused_with_the_way_to_one(run, words):
    words = [word.replace("{run}", str(run.path)) for word in words]
    with pytest.raises(UserError, match="RUN_DIR\n  hint: jobs freeze CONFIG"):
        find_run(words, None)
