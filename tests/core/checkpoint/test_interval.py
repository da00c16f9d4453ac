"""The time between two periodic checkpoints."""

import math

import pytest

from slurm_job_kit.jobs.contract.spec import Checkpoint
from slurm_job_kit.trainer.training.saves import interval_s


@pytest.mark.parametrize(
    ("checkpoint", "stall_s", "seconds"),
    [
        (Checkpoint(), 0.01, 60),  # auto: a minute, or twenty times the stall of the last save
        (Checkpoint(), 12.0, 240),
        (Checkpoint(every_minutes=2), 12.0, 120),
        (Checkpoint(every_steps=5), 12.0, math.inf),
        (Checkpoint(interval=None), 12.0, math.inf),
    ],
)
def test_the_interval_of_saves(checkpoint, stall_s, seconds):
    assert interval_s(checkpoint, stall_s) == seconds
