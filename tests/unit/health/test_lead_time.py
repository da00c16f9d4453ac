"""The time that a stop needs, by steps, evaluations and saves; the warning in the log."""

import math
import time

import pytest

from slurm_job_kit.jobs import records
from slurm_job_kit.jobs.records.queued import SlurmSite
from slurm_job_kit.jobs.spec import Launch, Slurm, Spec, advised_lead_s
from slurm_job_kit.trainer.health.lead_time import MARGIN_S, LeadTime, has_time_for_save
from slurm_job_kit.trainer.process.run_handle import RunHandle
from tests.unit import run_files


def lead_of(*steps, save=0.0, lead_s=60.0, **more):
    lead = LeadTime(lead_s, **more)
    for seconds in steps:
        lead.record_step(seconds)
    lead.record_save(save)
    return lead


@pytest.mark.parametrize(
    "steps, save, check_steps, expected",
    [
        ((), 0.0, None, 2 * 0.05),
        ((2.0, 2.0), 60.0, None, 3 * 2.0 + 60.0),
        ((2.0, 2.0), 60.0, 5, 2 * 5 * 2.0 + 2.0 + 60.0),
        ((0.01, 0.01), 3.0, None, 2 * 0.05 + 0.01 + 3.0),  # checked every 50 ms
        ((1.0, 90.0, 2.0, 1.5), 0.0, None, 3 * 2.0),  # 90 s were a suspension
        ((3.0,), 0.0, None, 2 * 0.05),  # one step is not measured enough
    ],
)
def test_what_a_stop_needs(steps, save, check_steps, expected):
    lead = lead_of(*steps, save=save, check_steps=check_steps)
    assert lead.need_s == pytest.approx(expected + MARGIN_S)


def test_the_warning_has_the_numbers_and_the_key_to_set():
    assert lead_of(2.1, 2.1, save=60).warning() == (
        "a stop needs about 76 s (step 2.1 s, save 60.0 s), the warning comes 60 s before the "
        "time limit: set slurm.signal_lead_s: 120"
    )
    assert advised_lead_s(70) == 90


def test_it_warns_once_and_again_when_the_need_has_grown_by_half():
    lead = lead_of(2.0, 2.0, save=60)
    assert lead.warning() and not lead.warning()
    lead.record_save(95)  # 111 s after 76
    assert not lead.warning()
    lead.record_save(100)
    assert "save 100.0 s" in lead.warning() and not lead.warning()


@pytest.mark.parametrize(
    "evaluations, expected",
    [
        ([(1.0, 7.0, 3.0)], 10.0),
        ([(9.0, 1.0, 1.0)], 10.0),  # the first batch starts the worker processes, once
        ([(9.0,)], 9.0),
        ([(9.0, 1.0, 5.0), (8.0, 1.0)], 10.0),  # steps lie between two evaluations
    ],
)
def test_a_stop_in_an_evaluation_needs_two_batches_in_a_row(evaluations, expected):
    lead = lead_of(2.0, 2.0)
    for batches in evaluations:
        lead.begin_step(0.0)
        for batch_s in batches:
            lead.record_batch(batch_s)
    assert lead.need_s == pytest.approx(3 * 2.0 + expected + MARGIN_S)


def test_enough_time_gives_no_warning():
    assert lead_of(2.0, 2.0, save=40).warning() == ""
    assert lead_of(2.0, 2.0, save=1e6, lead_s=None).warning() == ""


def test_a_grace_has_a_warning_of_its_own():
    told = lead_of(2.0, 2.0, save=40, preemption_s=40).warning()
    assert "a preempted job ends after 40 s" in told and "signal_lead_s" not in told


def test_evaluations_and_saves_are_no_steps():
    lead = LeadTime(1.0)
    clock = [100.0, 160.0, 161.0]  # the first step compiles
    for now in clock:
        lead.begin_step(now)
    with lead.exclude():
        pass
    for now in (193.0, 225.0):  # each of 2 s, behind an evaluation of 30 s
        lead._excluded_s = lead._evaluation_s = 30.0
        lead.begin_step(now)
    assert lead.step_s == pytest.approx(2.0)
    assert lead.need_s == pytest.approx(3 * 2.0 + 30.0 + MARGIN_S)


@pytest.mark.parametrize(
    "deadline, preemption_s, save, words",
    [
        (1e9, None, 60, ["signal_lead_s: 90"]),
        (1e9, 40, 60, ["signal_lead_s: 90", "after 40 s"]),
        (None, 40, 60, []),  # a run without Slurm
    ],
)
def test_limits_are_those_of_the_attempts_job(run, deadline, preemption_s, save, words):
    run_files.opened(run, deadline=deadline)
    records.write(run.site, SlurmSite(preemption_s=preemption_s))
    spec = Spec(slurm=Slurm(signal_lead_s=50), launch=Launch(stop_check_steps=1))
    lead = LeadTime.of(RunHandle(run, spec, 1))
    lead.record_save(save)
    warning = lead.warning()
    assert bool(warning) == bool(words) and all(word in warning for word in words)


@pytest.mark.parametrize(
    ("save_s", "left_s", "expected"),
    [
        (8.0, 2.0, False),  # a save of 8 s is committed in a grace of 10 s
        (14.0, 16.0, False),  # 14 s and KillWait 30 s
        (14.0, 24.0, True),  # 10 s are left for what comes after a save
        (14.1, 24.0, False),
        (0.1, 9.0, True),  # KillWait 10 s: half of it is left
        (4.6, 9.0, False),
        (0.1, 0.0, False),
        (0.1, -3.0, False),
        (1e6, math.inf, True),  # nothing ends a run without Slurm
    ],
)
def test_one_more_save_is_made_where_it_and_the_end_of_the_attempt_fit(save_s, left_s, expected):
    assert has_time_for_save(save_s, left_s) is expected


@pytest.mark.parametrize(
    ("until_limit_s", "preemption_s", "is_cancelled", "waited_s", "expected"),
    [
        (3600, None, False, 5, 30 - 5),  # scancel or a requeue: KillWait
        (3600, 120, False, 5, 120 - 5),
        (3600, 0, False, 5, -5),
        (3600, 120, True, 5, 30 - 5),  # no preemption
        (3600, 120, False, None, 120),  # another rank was warned
        (110, 120, False, 5, 110),  # the warning of the time limit may be 60 s early
        (40, None, True, 5, 40),
        (111, None, False, 5, 30 - 5),
        (-1, None, False, 70, 30 - 70),  # the limit was raised, or is over
        (None, 120, False, 5, math.inf),  # a run without Slurm
    ],
)
def test_the_time_that_is_left_after_a_stop_is_that_of_its_reason(
    run, until_limit_s, preemption_s, is_cancelled, waited_s, expected
):
    deadline = None if until_limit_s is None else time.time() + until_limit_s
    run_files.opened(run, deadline=deadline)
    records.write(run.site, SlurmSite(preemption_s=preemption_s, kill_wait_s=30))
    lead = LeadTime.of(RunHandle(run, Spec(slurm=Slurm(signal_lead_s=50)), 1))
    received_at = None if waited_s is None else time.monotonic() - waited_s
    assert lead.left_s(received_at, is_cancelled) == pytest.approx(expected, abs=0.9)
