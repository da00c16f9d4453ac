"""The time between two periodic checkpoints."""

import math

import pytest

from slurm_job_kit.jobs.spec import Checkpoint
from slurm_job_kit.trainer.checkpoint.interval import SaveInterval


def test_auto_is_a_minute_or_twenty_times_the_stall_of_the_last_save():
    interval = SaveInterval(Checkpoint())
    assert interval.seconds == 60
    interval.record_save(stall_s=12.0)
    assert interval.seconds == 240
    interval.record_save(stall_s=0.01)
    assert interval.seconds == 60


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
    interval = SaveInterval(checkpoint)
    interval.record_save(stall_s=12.0)
    assert interval.seconds == seconds
