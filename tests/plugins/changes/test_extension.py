"""A complete run trains on only where it certainly gets more steps."""

from contextlib import nullcontext

import pytest

from slurm_job_kit.jobs.base.errors import UserError
from slurm_job_kit.jobs.contract.spec import Spec, Train
from slurm_job_kit.jobs.plugins.changes import extension
from tests.core.run_files import write_json


@pytest.fixture
def run(run):
    write_json(run.result, {"status": "completed", "global_step": 100})
    return run


@pytest.mark.parametrize(
    ("was", "now", "is_longer"),
    [
        (Train(epochs=2), Train(epochs=3), True),
        (Train(epochs=2), Train(epochs=2, max_steps=101), True),
        (Train(max_steps=100), Train(max_steps=101), True),
        (Train(epochs=2), Train(epochs=2, lr=0.5), False),
        (Train(epochs=2), Train(epochs=1), False),
        (Train(epochs=2), Train(epochs=3, max_steps=100), False),
        (Train(max_steps=100), Train(max_steps=100, epochs=9), False),
        (Train(max_steps=100), Train(epochs=9), False),
    ],
)
def test_a_complete_run_is_refused_a_training_of_no_more_steps(run, was, now, is_longer):
    words = r"after 100 of 100 steps\n  hint: .*raise train\.ep"
    with nullcontext() if is_longer else pytest.raises(UserError, match=words):
        extension.check(run, Spec(train=was), now)


def test_a_training_that_ended_early_needs_more_patience(run):
    write_json(run.progress, {"step": 100, "total": 400})
    was = Train(epochs=4, early_stop_patience=2)
    with pytest.raises(UserError, match="complete after 100 of 400 steps"):
        extension.check(run, Spec(train=was), Train(epochs=9, early_stop_patience=2))
    extension.check(run, Spec(train=was), Train(epochs=4, early_stop_patience=3))
    extension.check(run, Spec(train=was), Train(epochs=4))
