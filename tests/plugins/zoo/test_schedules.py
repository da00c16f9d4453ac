"""The schedule of this plugin."""

import pytest

from slurm_job_kit.jobs.contract.spec import Train
from tests.core.model.test_optim import WARM_UP, rates_of


@pytest.mark.parametrize(
    ("train", "num_steps", "expected"),
    [
        (
            {"schedule": "wsd", "warmup_steps": 4, "lr_decay_fraction": 0.25},
            40,
            [*WARM_UP, *[0.4] * 27, *(0.04 * left for left in range(9, 0, -1))],
        ),
        (
            {"schedule": "wsd", "lr_decay_fraction": 1.0},
            8,
            [0.05 * left for left in range(8, 0, -1)],
        ),
    ],
)
def test_the_learning_rate_follows_the_schedule_of_the_plugin(train, num_steps, expected):
    assert rates_of(Train(lr=0.4, **train), num_steps) == pytest.approx(expected)
