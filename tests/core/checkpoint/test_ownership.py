"""The run of a command line."""

import pytest

from slurm_job_kit.trainer.errors import UserError
from slurm_job_kit.trainer.process.run_handle import find_run


@pytest.mark.parametrize("words", [["x.yaml"], ["{run}", "train.lr=1"], []])
def test_other_words_than_a_run_directory_are_refused_with_the_way_to_one(run, words):
    words = [word.replace("{run}", str(run.path)) for word in words]
    with pytest.raises(UserError, match="RUN_DIR\n  hint: jobs freeze CONFIG"):
        find_run(words, None)
