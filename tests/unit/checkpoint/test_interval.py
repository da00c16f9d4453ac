"""The time between two periodic checkpoints."""

import math
import re
from dataclasses import replace

import pytest

from slurm_job_kit.jobs.records import decode
from slurm_job_kit.jobs.records.ended import AttemptRecord, Cause
from slurm_job_kit.jobs.spec import Checkpoint
from slurm_job_kit.trainer.checkpoint.interval import (
    SECONDS_PER_DAY,
    Failures,
    SaveInterval,
    best_interval_s,
)
from tests.unit import run_files

OFTEN = 1 / 600  # failures per second


def test_the_interval_has_the_least_loss_of_all():
    stall_s, save_s = 1.0, 2.0

    def loss(interval_s):
        return stall_s / interval_s + OFTEN * interval_s / 2

    best_s = best_interval_s(save_s, stall_s, 0.1, OFTEN)
    assert best_s == pytest.approx(math.sqrt(2 * 600))
    assert all(loss(best_s) <= loss(other) for other in (20, 30, 40, 60, 120))


@pytest.mark.parametrize(
    ("save_s", "stall_s", "agreement_s"), [(0.05, 0.01, 0.1), (1, 0.5, 4), (30, 9, 2), (300, 5, 60)]
)
def test_a_failure_loses_at_most_a_minute_or_twenty_saves(save_s, stall_s, agreement_s):
    interval_s = best_interval_s(save_s, stall_s, agreement_s, 1 / (365 * SECONDS_PER_DAY))
    assert interval_s + agreement_s + save_s == pytest.approx(max(60, 20 * save_s))


def test_saves_do_not_overlap_however_often_a_run_fails():
    assert best_interval_s(40.0, 0.001, 0.1, 1.0) == 40.0


def failed(
    number: int, lasted_s: float = 3600.0, outcome: str | None = None
) -> list[AttemptRecord]:
    return [
        decode(
            AttemptRecord,
            run_files.attempt(
                {"outcome": outcome}, attempt=attempt, start=0.0, stop=3600.0, last_step=9
            ),
            "attempts.jsonl",
        )
        for attempt in range(1, number + 1)
    ]


def test_a_run_that_failed_often_saves_more_often():
    calm, unlucky, warned = (
        Failures.of(attempts, 2) for attempts in ([], failed(9), failed(9, outcome="stopped"))
    )
    assert (unlucky.number, warned.number) == (9, 0)
    seconds = [
        best_interval_s(0.5, 0.004, 0.1, failures.per_s) for failures in (warned, calm, unlucky)
    ]
    assert seconds == sorted(seconds, reverse=True) and seconds[0] > seconds[2]


def test_the_reason_is_logged_once_until_the_interval_changes():
    interval = SaveInterval(Checkpoint())
    first = interval.record_save(0.5, 0.02, 0.1)
    shown = re.search(r"every (\d+) s \(a save stops the training for 0.020 s", first)
    assert shown is not None and int(shown[1]) == round(interval.seconds)
    assert interval.record_save(0.5, 0.021, 0.1) == ""
    assert interval.record_save(30.0, 9.0, 1.0) == ""
    assert "every 569 s" in interval.record_save(30.0, 9.0, 1.0)


def test_one_save_that_hung_does_not_set_the_interval():
    interval = SaveInterval(Checkpoint())
    interval.record_save(3600.0, 3600.0, 0.1)
    assert interval.seconds <= 60
    interval.record_save(0.5, 0.02, 0.1)
    usual_s = interval.seconds
    interval.record_save(3600.0, 3600.0, 0.1)
    assert interval.seconds == usual_s < 60


def test_with_steps_of_minutes_the_interval_is_the_least_one():
    assert best_interval_s(0.3, 0.02, 900.0, OFTEN) == 10.0


def test_the_time_of_a_lost_attempt_and_a_clock_that_was_set_back_do_not_count():
    before, lost = failed(2)
    before, lost = replace(before, start=1e9), replace(lost, cause=Cause.LOST, stop=1e9)
    assert Failures.of([before, lost], 1).trained_s == 0.0


@pytest.mark.parametrize(
    ("checkpoint", "seconds"),
    [
        (Checkpoint(every_steps=5), math.inf),
        (Checkpoint(every_epochs=1), math.inf),
        (Checkpoint(interval=None), math.inf),
        (Checkpoint(every_minutes=0.5), 30.0),
    ],
)
def test_keys_of_the_spec_win(checkpoint, seconds):
    interval = SaveInterval(checkpoint)
    assert interval.record_save(1.0, 0.5, 0.1) == ""
    assert interval.seconds == seconds
