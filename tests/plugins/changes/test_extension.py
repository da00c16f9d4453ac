"""A complete run trains on only where it certainly gets more steps."""

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
    ("was", "now"),
    [
        (Train(epochs=2), Train(epochs=3)),
        (Train(epochs=2), Train(epochs=2, max_steps=101)),
        (Train(max_steps=100), Train(max_steps=101)),
    ],
)
def test_a_longer_training_is_accepted(run, was, now):
    extension.check(run, Spec(train=was), now)


@pytest.mark.parametrize(
    ("was", "now"),
    [
        (Train(epochs=2), Train(epochs=2, lr=0.5)),
        (Train(epochs=2), Train(epochs=1)),
        (Train(epochs=2), Train(epochs=3, max_steps=100)),
        (Train(max_steps=100), Train(max_steps=100, epochs=9)),
        (Train(max_steps=100), Train(epochs=9)),
    ],
)
def test_another_training_of_no_more_steps_is_refused(run, was, now):
    with pytest.raises(UserError, match=r"after 100 of 100 steps\n  hint: .*raise train\.ep"):
        extension.check(run, Spec(train=was), now)


def test_a_training_that_ended_early_needs_more_patience(run):
    write_json(run.progress, {"step": 100, "total": 400})
    was = Train(epochs=4, early_stop_patience=2)
    with pytest.raises(UserError, match="complete after 100 of 400 steps"):
        extension.check(run, Spec(train=was), Train(epochs=9, early_stop_patience=2))
    extension.check(run, Spec(train=was), Train(epochs=4, early_stop_patience=3))
    extension.check(run, Spec(train=was), Train(epochs=4))
