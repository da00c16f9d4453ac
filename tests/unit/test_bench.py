"""The figures of the benches and their table: arithmetic only, no measurement of time."""

import json
from typing import Any

import pytest

from tests.bench import report, rounds
from tests.bench.rounds import Figure, Target, interleaved, ratio
from tests.bench.samples import EPOCHS, NUM_SAMPLES, num_wrong


@pytest.mark.parametrize(
    ("target", "reached", "missed"),
    [(Target("<=", 1.03), 1.03, 1.04), (Target(">=", 9), 9.1, 8.9), (Target("==", 0), 0, 1)],
)
def test_a_target_is_a_bound_on_its_own_side(target, reached, missed):
    assert target.is_reached(reached)
    assert not target.is_reached(missed)


def test_the_ratio_is_that_of_the_medians_and_one_slow_round_does_not_count():
    figure = ratio(
        "kit / bare", [2.0, 2.2, 90.0, 2.1, 2.0], [1.0, 1.1, 1.0, 1.0, 1.0], Target("<=", 3)
    )
    assert figure.value == pytest.approx(2.1)
    assert figure.spread == pytest.approx((2.0, 46.05))
    assert figure.record()["is_reached"] is True


def test_rounds_alternate_and_the_first_one_does_not_count():
    order = []

    def variant(name):
        def measured():
            order.append(name)
            return float(len(order))

        return measured

    times = interleaved({"kit": variant("kit"), "bare": variant("bare")}, rounds=3)
    assert order == ["kit", "bare", "bare", "kit", "kit", "bare", "bare", "kit"]
    assert times == {"kit": [4.0, 5.0, 8.0], "bare": [3.0, 6.0, 7.0]}


def test_the_table_tells_what_was_reached_and_what_failed():
    missed = Figure("stall", 8.3, Target(">=", 9), (8.0, 8.5)).record()
    exact = Figure("reductions", 1.0, Target("==", 1)).record()
    results: list[dict[str, Any]] = [
        {"bench": "B8 checkpoint_stall", "figures": [missed], "error": None},
        {"bench": "B7 accumulation", "figures": [exact], "error": None},
        {"bench": "B10 seek", "figures": [], "error": "failed with status 1"},
    ]
    assert [" ".join(line.split()) for line in report.table(results).splitlines()] == [
        "bench measured middle half to reach reached",
        "B8 checkpoint_stall stall 8.300 8.000 to 8.500 >= 9 NO",
        "B7 accumulation reductions 1 exact == 1 yes",
        "B10 seek failed with status 1 -",
    ]


def test_what_is_measured_and_where_fits_into_json():
    figure = ratio("a / b", [1.0, 1.0], [2.0, 2.0], Target("<=", 1)).record()
    assert json.loads(json.dumps(figure))["detail"] == {"above_s": [1, 1], "below_s": [2, 2]}
    assert "torch" in report.describe(json.loads(json.dumps(rounds.machine())))


def test_samples_are_counted_that_come_twice_or_not_at_all():
    steps = NUM_SAMPLES
    once = [(epoch * steps + n, n) for epoch in range(EPOCHS) for n in range(NUM_SAMPLES)]
    assert num_wrong(once, steps) == 0
    assert num_wrong(once[1:], steps) == 1
    assert num_wrong([*once, once[5]], steps) == 1
    assert num_wrong([*once[:-1], (0, NUM_SAMPLES - 1)], steps) == 2  # in the wrong epoch
