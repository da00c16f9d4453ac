"""A run with stops ends bitwise equal to the reference run, with 2, 3, 4 and 6 ranks."""

import sys

import pytest

from slurm_job_kit.jobs.base.files import read_json
from slurm_job_kit.jobs.plugins import PLUGINS
from tests.local.stop_plans import EVALUATION_BATCHES, HYBRID, SHARDED, SPECS, WITH_WORKERS
from tests.local.test_trainer import end, environment, start

PROGRAM = "from tests.local import stop_plans; stop_plans.main()"
LEFT_OUT = () if "samples" in PLUGINS else WITH_WORKERS
QUICK = ("every_step", "slow_evaluation", *(name for name in WITH_WORKERS if name not in LEFT_OUT))
OTHERS = tuple(name for name in SPECS if name not in (*QUICK, *LEFT_OUT))
IN_SHARDS, SLOW = pytest.mark.plugin("sharded"), pytest.mark.slow
# Ranks, and the scenarios of one start of them. Two ranks hide a wrong order of summation.
QUICK_WORK, OTHER_WORK = (3, QUICK), (3, OTHERS)
TABLE = [
    QUICK_WORK,
    pytest.param(OTHER_WORK, marks=SLOW),
    pytest.param((2, SHARDED), marks=IN_SHARDS),
    pytest.param((3, SHARDED), marks=[IN_SHARDS, SLOW]),
    pytest.param((4, HYBRID), marks=[IN_SHARDS, SLOW]),
    pytest.param((6, ("fsdp", "fsdp_gpt", "hsdp")), marks=[IN_SHARDS, SLOW]),
    pytest.param((2, ("fsdp_compiled",)), marks=[IN_SHARDS, SLOW]),
]


@pytest.fixture(scope="module")
def found(request, tmp_path_factory):
    """The findings of each scenario."""
    ranks, names = request.param
    folder = tmp_path_factory.mktemp("runs")
    command = [sys.executable, "-c", PROGRAM, str(ranks), str(folder), *names]
    status, output = end(start(command, environment(1)), limit_s=300)
    assert status == 0, output
    return {name: read_json(folder / f"{name}.json") for name in names}


@pytest.mark.parametrize("found", TABLE, indirect=True, ids=str)
def test_stopped_runs_end_with_the_bits_of_the_reference_run(found):
    for name, each in found.items():
        assert [(name, run["differences"]) for run in each["runs"] if run["differences"]] == []
        assert any(run["stops"] for run in each["runs"]), name


@pytest.mark.parametrize("found", [QUICK_WORK], indirect=True, ids=str)
def test_a_run_was_stopped_after_every_step(found):
    stops = {step for run in found["every_step"]["runs"] for step in run["stops"]}
    assert stops == {0, *range(2, 11)}  # a stop of step 1 is agreed on one step later


@pytest.mark.parametrize("found", [QUICK_WORK], indirect=True, ids=str)
def test_row_40_a_stop_in_an_evaluation_ends_it_within_a_few_batches(found):
    """The evaluation is given up at once and repeated by the next attempt, with equal bits."""
    once, thrice = found["slow_evaluation"]["runs"]
    assert (once["stops"], thrice["stops"]) == ([2], [2, 2, 2])  # all in the evaluation of step 2
    assert max(once["evaluated"] + thrice["evaluated"]) < EVALUATION_BATCHES
