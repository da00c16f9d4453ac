"""The time between two periodic checkpoints."""

import math

import pytest

from slurm_job_kit.jobs.spec import Checkpoint
from slurm_job_kit.trainer.saves import interval_s


@pytest.mark.parametrize(("stall_s", "seconds"), [(0.0, 60), (12.0, 240), (0.01, 60)])
def test_auto_is_a_minute_or_twenty_times_the_stall_of_the_last_save(stall_s, seconds):
    assert interval_s(Checkpoint(), stall_s) == seconds


@pytest.mark.parametrize(
    ("checkpoint", "seconds"),
    [
        (Checkpoint(every_minutes=2), 120),
        (Checkpoint(every_steps=5), math.inf),
        (Checkpoint(every_epochs=1), math.inf),
        (Checkpoint(interval=None), math.inf),
    ],
)
def test_keys_of_the_spec_win(checkpoint, seconds):
    assert interval_s(checkpoint, stall_s=12.0) == seconds
