"""Curves are thinned out without the loss of a peak, and rank runs."""

import math
import random

import pytest

from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.commands.times import charts, page
from slurm_job_kit.jobs.commands.times.curves import MAX_GROUPS, Curves, ThinnedCurve, add_metrics
from slurm_job_kit.jobs.commands.times.ranking import rank
from slurm_job_kit.jobs.commands.times.summary import summarize
from slurm_job_kit.jobs.runs import state
from slurm_job_kit.jobs.spec import Checkpoint, Spec
from tests.unit.commands.report_kit import lines, two_attempts, write_run
from tests.unit.run_files import make_run


def thinned(values):
    curve = ThinnedCurve()
    for step, value in enumerate(values):
        curve.add(step, value)
    return curve


@pytest.mark.parametrize("number", [1, 2, MAX_GROUPS, MAX_GROUPS + 1, 5 * MAX_GROUPS + 3, 100_000])
def test_a_curve_keeps_its_order_its_peaks_and_a_bounded_number_of_points(number):
    rng = random.Random(number)
    values = [rng.random() for _ in range(number)]
    points = thinned(values).points()
    assert len(points) <= MAX_GROUPS and points[-1].x == number - 1
    assert [point.x for point in points] == sorted(point.x for point in points)
    assert all(point.low <= point.mean <= point.high for point in points)
    assert min(point.low for point in points) == min(values)
    assert max(point.high for point in points) == max(values)


def test_a_point_is_the_mean_of_its_values():
    rising = thinned(range(4 * MAX_GROUPS)).points()
    assert [tuple(point) for point in rising[:2]] == [(3, 1.5, 0, 3), (7, 5.5, 4, 7)]


def test_a_short_curve_is_kept_as_it_is():
    points = thinned([3, 1, 2]).points()
    assert [tuple(point) for point in points] == [(0, 3, 3, 3), (1, 1, 1, 1), (2, 2, 2, 2)]


@pytest.mark.long
def test_a_page_of_a_long_run_with_many_metrics_stays_small(here):
    run = write_run(make_run(here), two_attempts())
    rng, curves = random.Random(1), Curves()
    names = [f"train_{index}" for index in range(30)]
    add_metrics(
        curves,
        ({"step": step} | {name: rng.random() for name in names} for step in range(5000)),
    )
    text = page.page_of([summarize(state.read(run))], [curves], [])
    assert len(text.encode()) < 2_000_000
    assert f"{30 - charts.MAX_METRIC_CHARTS} more metrics" in text


def runs_with(here, *values, metric="eval_accuracy"):
    """A run for each list of values, at the steps 1, 2, ..."""
    runs = [make_run(here, str(number)) for number in range(len(values))]
    for run, own in zip(runs, values, strict=True):
        lines_of_run = [lines([step], **{metric: value})[0] for step, value in enumerate(own, 1)]
        write_run(run, two_attempts(), lines_of_run)
    return runs


def test_runs_are_ranked_by_the_best_value_and_those_without_one_are_last(here):
    runs = runs_with(here, [0.1, 0.5, 0.4], [], [math.nan], [0.9, 0.2])
    ranked = rank(runs, "eval_accuracy")
    assert [each.run_dir for each in ranked] == [runs[3], runs[0], runs[1], runs[2]]
    assert [(each.value, each.step) for each in ranked[:3]] == [(0.9, 1), (0.5, 2), (None, None)]


def test_a_smaller_loss_is_better_and_a_training_metric_counts_by_its_last_value(here):
    runs = runs_with(here, [0.1, 0.5], [0.4, 0.3], metric="train_loss")
    assert [each.value for each in rank(runs, "train_loss")] == [0.3, 0.5]
    runs = runs_with(here / "other", [0.1, 0.5], [0.4, 0.3], metric="train_accuracy")
    assert [each.value for each in rank(runs, "train_accuracy")] == [0.5, 0.3]


def test_the_mode_of_the_spec_decides_about_a_metric_that_is_not_built_in(here):
    runs = runs_with(here, [1.0], [2.0], metric="eval_f1")
    assert [each.value for each in rank(runs, "eval_f1")] == [1.0, 2.0]
    checkpoint = Checkpoint(best="eval_f1", best_mode="max")
    for run in runs:
        run.spec.write_text(Spec(name="tiny", checkpoint=checkpoint).to_json())
    assert [each.value for each in rank(runs, "eval_f1")] == [2.0, 1.0]


def test_report_prints_the_ranking_and_names_the_metrics_that_there_are(here, capsys):
    runs_with(here, [0.1], [0.9])
    assert main(["report", "0", "1", "--metric", "eval_accuracy"]) == 0
    order = capsys.readouterr().out.partition("largest first")[2]
    assert order.index("tiny 1") < order.index("tiny 0")
    assert main(["report", "0", "--metric", "eval_nix"]) == 2
    assert "eval_accuracy" in capsys.readouterr().err
