"""A run with stops ends bitwise equal to the reference run, with 2, 3, 4 and 6 ranks."""

import sys

import pytest

from slurm_job_kit.jobs.rooms import ROOMS
from slurm_job_kit.jobs.rundir import read_json
from tests.local.stop_plans import EVALUATION_BATCHES, SPECS, WITH_WORKERS
from tests.local.test_trainer import end, environment, start

PROGRAM = "from tests.local import stop_plans; stop_plans.main()"
RANKS = 3  # two hide a wrong order of summation


def findings(folder, ranks, names):
    """The findings of each scenario, from one start of the ranks."""
    command = [sys.executable, "-c", PROGRAM, str(ranks), str(folder), *names]
    status, output = end(start(command, environment(1)), limit_s=300)
    assert status == 0, output
    return {name: read_json(folder / f"{name}.json") for name in names}


LEFT_OUT = () if "samples" in ROOMS else (*WITH_WORKERS, "masks")
QUICK = ("every_step", "slow_evaluation", *(name for name in WITH_WORKERS if name not in LEFT_OUT))
OTHERS = tuple(name for name in SPECS if name not in (*QUICK, *LEFT_OUT))


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return findings(tmp_path_factory.mktemp("ddp"), RANKS, QUICK)


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    return findings(tmp_path_factory.mktemp("others"), RANKS, OTHERS)


@pytest.mark.parametrize("name", QUICK)
def test_stopped_runs_end_with_the_bits_of_the_reference_run(found, name):
    assert_equal(found[name]["runs"])


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_stopped_runs_of_other_work_end_with_the_bits_of_the_reference_run(others, name):
    assert_equal(others[name]["runs"])


def assert_equal(runs):
    assert [run["differences"] for run in runs] == [[]] * len(runs)
    assert any(run["stops"] for run in runs)


def test_a_run_was_stopped_after_every_step(found):
    stops = {step for run in found["every_step"]["runs"] for step in run["stops"]}
    assert stops == {0, *range(2, 11)}  # a stop of step 1 is agreed on one step later


@pytest.mark.slow
def test_one_epoch_was_stopped_ten_times(others):
    (run,) = others["ten_in_one_epoch"]["runs"]
    assert run["stops"] == list(range(2, 21, 2))


def test_row_40_a_stop_in_an_evaluation_ends_it_within_a_few_batches(found):
    """The evaluation is given up at once and repeated by the next attempt, with equal bits."""
    once, thrice = found["slow_evaluation"]["runs"]
    assert (once["stops"], thrice["stops"]) == ([2], [2, 2, 2])  # all in the evaluation of step 2
    assert max(once["evaluated"] + thrice["evaluated"]) < EVALUATION_BATCHES
