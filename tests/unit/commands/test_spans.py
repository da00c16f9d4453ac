"""The time of a run is divided into uses, without a gap and without an overlap."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from slurm_job_kit.jobs.commands.times.history import AttemptHistory
from slurm_job_kit.jobs.commands.times.spans import BEGINS, spans_of
from slurm_job_kit.jobs.records.ended import Action, Cause
from slurm_job_kit.jobs.spec import Launch, Spec
from tests.unit.commands.report_kit import BEGIN, attempt, event, history, seconds, started

# A start-up from second 10 on; steps of a second each, from second 18 on.
FIRST = started(10)
START_UP_S = {
    **dict.fromkeys(("launch", "import", "rendezvous", "init"), 1.0),
    **dict.fromkeys(("data", "model", "restore", "first_step"), 1.0),
}


def paced(*steps, since=17):
    return [event(since + step, "steps", step) for step in steps]


def test_a_run_without_interruption():
    events = [
        *FIRST,
        *paced(10, 20),
        event(42, "evaluation", 20, seconds=5.0),
        event(53, "save", 25, seconds=3.0, stall_s=0.25),
        event(62, "save", 40, seconds=2.0, stall_s=0.25),
        event(62, "completed", 40),
        event(64, "torchrun_end"),
    ]
    done = attempt(1, 10, 65, events, last_step=40, first_step=1, decision=Action.DONE)
    assert seconds(history([done], 65, submits=[3])) == {
        "submit": 3.0,
        "queue": 7.0,
        **START_UP_S,
        "training": 62 - 18 - 5 - 0.25 - 2,  # the last save is waited for as a whole
        "evaluation": 5.0,
        "checkpoint": 2.25,
        "stopping": 3.0,
    }


def test_compilations_are_a_use_of_their_own_in_the_start_up_and_in_the_training():
    events = [*FIRST, *paced(10, 20), event(15.75, "compile", seconds=0.5)]
    # The evaluation compiles for its batch size; a first step and another one for other shapes.
    events += [event(40, "compile", seconds=2), event(42, "evaluation", 20, seconds=5.0)]
    events += [event(17.5, "compile", seconds=0.25), event(60, "completed", 40)]
    done = attempt(1, 10, 60, events, last_step=40, first_step=1, decision=Action.DONE)
    uses = seconds(history([done], 60, submits=[3]))
    assert (uses["compile"], uses["model"], uses["first_step"]) == (0.75, 0.5, 0.75)
    assert (uses["recompile"], uses["evaluation"], uses["training"]) == (2.0, 3.0, 60 - 18 - 5)


def test_steps_that_a_later_attempt_repeats_are_redone_and_its_wait_is_queue():
    first = attempt(1, 10, 68, [*FIRST, *paced(10, 20, 50)], failed=67, first_step=1, last_step=50)
    second = attempt(2, 100, 140, started(100, loaded=30), first_step=31, last_step=60)
    uses = seconds(history([first, second], 140))
    assert uses["redone"] == 20.0  # from step 30, at second 47, to the failure at second 67
    assert uses["training"] == (67 - 18 - 20) + (140 - 108)
    assert uses["queue"] == 10 + (100 - 68) and uses["stopping"] == 1.0


def test_steps_beyond_the_last_report_count_by_the_pace_before():
    first = attempt(1, 10, 60, [*FIRST, *paced(10, 20)], failed=60, first_step=1, last_step=40)
    second = attempt(2, 70, 90, started(70, loaded=30), first_step=31, last_step=60)
    assert seconds(history([first, second], 90))["redone"] == 60 - (17 + 30)


def test_only_the_oldest_later_beginning_counts_as_repeated():
    first = attempt(1, 10, 57, [*FIRST, *paced(10, 40)], first_step=1, last_step=40)
    second = attempt(2, 60, 90, started(60, loaded=40), first_step=41, last_step=50)
    third = attempt(3, 95, 130, started(95, loaded=20), first_step=21, last_step=60)
    assert seconds(history([first, second, third], 130))["redone"] == 20 + (90 - 68)


@pytest.mark.parametrize(
    ("decision", "submits", "expected"),
    [
        (Action.REQUEUE, [0], {"queue": 40}),
        (Action.SUCCESSOR, [0], {"queue": 40}),
        (Action.RETRY, [0], {"restart": 40}),
        (Action.HOLD, [0, 75], {"idle": 15, "queue": 25}),
        (Action.CANCEL, [0, 75], {"idle": 15, "queue": 25}),
        (Action.HOLD, [0], {"idle": 40}),
    ],
)
def test_the_time_between_two_attempts(decision, submits, expected):
    first = attempt(1, 0, 60, [event(1, "torchrun")], decision=decision)
    second = attempt(2, 100, 101, [event(100, "torchrun")])
    uses = seconds(history([first, second], 101, submits))
    assert {use: uses.get(use, 0) for use in ("queue", "restart", "idle")} == {
        **dict.fromkeys(("queue", "restart", "idle"), 0),
        **expected,
    }


def test_a_lost_attempt_ends_with_the_last_line_that_it_wrote():
    lost = attempt(1, 10, 200, [*FIRST, *paced(10, 40)], first_step=1, last_step=45)
    lost = replace(lost, events=tuple(e for e in lost.events if e.event != "close"))
    second = attempt(2, 201, 240, started(201, loaded=45), first_step=46, last_step=60)
    uses = seconds(history([lost, second], 240))
    assert uses["training"] == (17 + 45 - 18) + (240 - 209)
    assert uses["queue"] == 10 + 201 - (17 + 45)


def test_a_hang_is_shown_from_the_last_step_to_the_end_that_the_watchdog_made():
    events = [*FIRST, *paced(10, 20)]
    hung = attempt(1, 10, 400, events, failed=390, first_step=1, last_step=22, cause=Cause.HANG)
    uses = seconds(history([hung], 400))
    assert (uses["hang"], uses["training"], uses["stopping"]) == (390 - 39, 39 - 18, 10)
    assert "not_explained" not in uses


def test_a_long_time_without_a_step_is_not_explained():
    suspended = [*FIRST, *paced(10, 20), event(1000, "steps", 21), event(1001, "steps", 22)]
    ended = [*suspended, event(1010, "completed", 31)]
    done = attempt(1, 10, 1010, ended, first_step=1, last_step=31, decision=Action.DONE)
    uses = seconds(history([done], 1010))
    assert uses["not_explained"] == 1000 - 37 - 5  # five times the usual second


def test_slow_steps_are_training():
    events = [*FIRST, *paced(10, 20), event(97, "steps", 21), event(100, "completed", 24)]
    done = attempt(1, 10, 100, events, first_step=1, last_step=24, decision=Action.DONE)
    assert "not_explained" not in seconds(history([done], 100))


def test_an_attempt_whose_timeline_is_gone_is_not_explained():
    bare = attempt(1, 10, 100, first_step=1, last_step=24, decision=Action.DONE)
    assert seconds(history([bare], 100)) == {"queue": 10.0, "not_explained": 90.0}


def test_a_start_up_that_fails_belongs_to_its_phase():
    failing = attempt(1, 10, 100, FIRST[:4], failed=98, decision=Action.HOLD)
    assert seconds(history([failing], 100))["data"] == 98 - 14


def test_a_running_attempt_lasts_to_now_and_its_progress_counts():
    running = AttemptHistory(1, (BEGIN + 10) * 1000, ("n1",), "7", events=tuple(FIRST))
    run_history = history([running], 600)
    assert seconds(run_history)["not_explained"] == 600 - 18
    reported = replace(running, reported=((BEGIN + 599) * 1000, 582))
    assert "not_explained" not in seconds(history([reported], 600))


def test_a_script_that_reports_nothing_trains_from_its_start_to_its_end():
    events = [event(11, "torchrun"), event(13, "spawn"), event(90, "torchrun_end")]
    spec = Spec(launch=Launch(script="train.py"))
    uses = seconds(history([attempt(1, 10, 91, events)], 91, spec=spec))
    assert uses == {"queue": 10, "launch": 1, "import": 2, "training": 77, "stopping": 1}


def any_history(rng):
    """Attempts with any events at any times, as clocks that differ or lost files leave them."""
    names = [*BEGINS, "spawn", "steps", "evaluation", "save", "close", "unknown"]
    attempts, at = [], rng.randrange(50)
    for number in range(1, rng.randrange(5)):
        stop = at + rng.randrange(-5, 300)
        events = [
            event(
                rng.uniform(at - 30, at + 330),
                rng.choice(names),
                rng.choice([None, rng.randrange(100)]),
                seconds=rng.choice([None, rng.uniform(0, 50)]),
                stall_s=rng.choice([None, rng.uniform(0, 50)]),
            )
            for _ in range(rng.randrange(30))
        ]
        steps = sorted(rng.sample(range(100), 2)) if rng.random() < 0.7 else (None, None)
        failed = rng.choice([None, rng.randrange(at, at + 300)])
        fields = {"first_step": steps[0], "last_step": steps[1]}
        fields |= {"cause": rng.choice(list(Cause)), "decision": rng.choice(list(Action))}
        made = attempt(number, at, stop, sorted(events, key=lambda e: e.t), failed, **fields)
        is_open = rng.random() < 0.2
        attempts.append(replace(made, stop=None, record=None) if is_open else made)
        at += rng.randrange(400)
    submits = sorted(rng.uniform(0, 500) for _ in range(rng.randrange(4)))
    return history(attempts, rng.randrange(1500), [round(each) for each in submits])


def test_the_spans_sum_to_the_wall_time_exactly_whatever_the_files_have():
    for seed in range(500):
        run_history = any_history(random.Random(seed))
        spans = spans_of(run_history)
        assert sum(span.length for span in spans) == run_history.end - run_history.begin, (
            f"seed {seed}"
        )
        assert all(a.end == b.begin for a, b in pairwise(spans)), f"seed {seed}"
        assert all(span.length > 0 for span in spans), f"seed {seed}"
