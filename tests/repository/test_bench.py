"""The figures of the benches and their table: arithmetic only, no measurement of time."""

import json
from importlib.util import find_spec

import pytest

from tests.bench import report, rounds
from tests.bench.__main__ import measure
from tests.bench.catalogue import BENCHES, Bench, chosen
from tests.bench.data.samples import EPOCHS, NUM_SAMPLES, num_wrong
from tests.bench.rounds import Figure, Target, interleaved, ratio
from tests.bench.start import file_operations


@pytest.mark.parametrize(
    ("bound", "value", "spread", "verdict"),
    [
        ("<=", 0.9, (0.8, 0.95), "yes"),
        ("<=", 1.1, (1.05, 1.2), "NO"),
        ("<=", 0.9, (0.8, 1.1), "cannot tell"),
        ("<=", 1.1, (0.9, 1.2), "cannot tell"),
        ("<=", 1.1, (0.8, 0.9), "cannot tell"),  # the ratio of medians is no median of ratios
        *(("<=", 1.0, None, "yes"), (">=", 1.0, None, "yes"), (">=", 0.9, None, "NO")),
        *(("==", 1.0, None, "yes"), ("==", 1.1, None, "NO"), ("==", 0.9, None, "NO")),
    ],
)
def test_a_target_is_a_bound_and_no_verdict_where_the_rounds_disagree(
    bound, value, spread, verdict
):
    record = Figure("x", value, Target(bound, 1), spread).record()
    assert record["verdict"] == verdict


def test_what_cannot_tell_counts_as_missed():
    figures = [Figure("x", each, Target("<=", 1), (0.8, each)).record() for each in (0.9, 1.1)]
    results = [{"bench": "B1 x", "figures": figures, "error": None}]
    text = "targets: 1 reached, 1 missed (of which 1 cannot tell); 61 s in total"
    assert report.summary(results, 61.2) == text


def test_benches_are_chosen_by_set_number_and_name_in_the_order_of_the_list():
    names = [bench.name for bench in chosen(["seek B4"])]
    assert names == ["overhead", "overhead_two_ranks", "seek"]
    assert chosen(["full"]) == list(BENCHES)
    usual = {bench.number for bench in chosen(["usual"])}
    assert usual and not usual & {"B3", "B5", "B13", "B16"}
    with pytest.raises(ValueError, match="no bench has the name B99"):
        chosen(["B4", "B99"])


def test_each_bench_has_a_module_and_a_word_of_its_own():
    assert [chosen([bench.name]) for bench in BENCHES] == [[bench] for bench in BENCHES]
    assert all(find_spec(f"tests.bench.{bench.module}") for bench in BENCHES)


def test_a_bench_whose_needs_are_missing_gives_the_reason_and_no_error(tmp_path):
    bench = Bench("B0", "no_such_module", "x", needs=(lambda: None, lambda: "needs a GPU"))
    result = measure(bench, tmp_path)
    assert not result["error"]
    assert report.progress(result) == "B0 no_such_module: left out, needs a GPU"
    row = report.table([result]).splitlines()[1]
    assert " ".join(row.split()) == "B0 no_such_module needs a GPU -"


def test_the_ratio_is_that_of_the_medians_and_one_slow_round_does_not_count():
    figure = ratio(
        "kit / bare", [2.0, 2.2, 90.0, 2.1, 2.0], [1.0, 1.1, 1.0, 1.0, 1.0], Target("<=", 3)
    )
    assert figure.value == pytest.approx(2.1)
    assert figure.spread == pytest.approx((2.0, 46.05))
    assert figure.record()["verdict"] == "cannot tell"


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


def test_what_is_measured_and_where_fits_into_json():
    figure = ratio("a / b", [1.0, 1.0], [2.0, 2.0], Target("<=", 1)).record()
    assert json.loads(json.dumps(figure))["detail"] == {"above_s": [1, 1], "below_s": [2, 2]}
    assert "torch" in report.describe(json.loads(json.dumps(rounds.machine())))


TRACE = """\
7 openat(3</run>, "owner.json", O_RDONLY) = 4</run/owner.json>
7 clone3({flags=CLONE_VM|CLONE_THREAD, child_tid=0x7f} <unfinished ...>
9 openat(AT_FDCWD</run>, "x", O_RDONLY) = 4</run/x>
7 <... clone3 resumed>, 88) = 8
8 fsync(4</run/metrics.jsonl> <unfinished ...>
7 write(5</run/timeline/rank-00001.jsonl>, "{\\"event\\": \\"first_step\\"}", 30) = 30
8 <... fsync resumed>) = 0
7 clone(child_stack=NULL, flags=CLONE_CHILD_CLEARTID|SIGCHLD) = 10
10 unlink("/run/x") = 0
8 getdents64(6</run/checkpoints>, 0x55 /* 3 entries */, 32768) = 80
7 openat(AT_FDCWD</>, "/etc/hosts", O_RDONLY) = 4</etc/hosts>
"""


def test_the_operations_of_a_ranks_threads_are_its_own_and_those_of_its_children_are_not():
    (counts,) = file_operations._counts(TRACE.splitlines(), [7], "/run")
    assert counts.start == {"openat": 1, "fsync": 1, "write": 1}
    assert counts.later == {"getdents64": 1}


def test_samples_are_counted_that_come_twice_or_not_at_all():
    steps = NUM_SAMPLES
    once = [(epoch * steps + n, n) for epoch in range(EPOCHS) for n in range(NUM_SAMPLES)]
    assert num_wrong(once, steps) == 0
    assert num_wrong(once[1:], steps) == 1
    assert num_wrong([*once, once[5]], steps) == 1
    assert num_wrong([*once[:-1], (0, NUM_SAMPLES - 1)], steps) == 2  # in the wrong epoch
