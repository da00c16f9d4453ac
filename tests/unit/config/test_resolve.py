"""Keys that a spec leaves open are filled in; given values stay."""

import copy
from typing import Any

import pytest

from slurm_job_kit.jobs.config import resolve
from slurm_job_kit.jobs.problems import Problem
from slurm_job_kit.jobs.spec import Slurm, Spec


@pytest.fixture
def values(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROOT", "/scratch")
    monkeypatch.delenv("UNSET", raising=False)
    (tmp_path / "weights").mkdir()
    return {"runs_root": "$ROOT/runs", "train": {"init_from": "weights", "lr": 1}, "log": None}


def test_paths_are_expanded_in_a_copy(values, tmp_path):
    before = copy.deepcopy(values)
    problems: list[Problem] = []
    expanded = resolve.expand(values, problems)
    assert problems == [] and values == before
    assert expanded["runs_root"] == "/scratch/runs"
    assert expanded["train"] == {"init_from": str(tmp_path.resolve() / "weights"), "lr": 1}
    assert list(expanded) == list(values)


def test_a_path_that_cannot_be_expanded_stays_and_is_a_problem(values):
    values |= {"runs_root": "$UNSET/x", "train": {"init_from": "nowhere"}}
    problems: list[Problem] = []
    assert resolve.expand(values, problems) == values
    assert [problem.path for problem in problems] == [("runs_root",), ("train", "init_from")]


@pytest.mark.parametrize("train", [None, 5, [], {}, {"init_from": None}, {"init_from": 3}])
def test_values_of_a_wrong_type_are_left_to_the_type_check(train):
    assert resolve.expand({"train": train}, []) == {"train": train}


def test_what_is_null_counts_as_left_out_only_where_it_holds_keys_or_items(values):
    given = {"log": None, "slurm": {"sbatch_args": None, "partition": None}, "setup": None}
    before = copy.deepcopy(given)
    assert resolve.without_empty(given) == {"slurm": {"partition": None}}
    assert given == before


@pytest.mark.parametrize(
    ("path", "left"),
    [
        (("a",), {"d": 2}),
        (("a", "b"), {"a": {}, "d": 2}),
        (("a", "b", 0), {"a": {}, "d": 2}),
        (("x", "y"), {"a": {"b": [1]}, "d": 2}),
        (("d", "e"), {"a": {"b": [1]}}),
    ],
)
def test_a_key_is_left_out_of_a_copy_and_a_list_as_a_whole(path, left):
    given = {"a": {"b": [1]}, "d": 2}
    assert resolve.without_key(given, path) == left
    assert given == {"a": {"b": [1]}, "d": 2}


def test_the_canonical_spec_has_sbatchs_spelling_and_no_false_flags():
    args: dict[str, Any] = {"mail_type": "END", "hold": False, "time_min": "4:00", "nice": 0}
    spec = Spec(slurm=Slurm(time="90", sbatch_args=args))
    slurm = resolve.canonical(spec).slurm
    assert slurm.time == "01:30:00"
    assert slurm.sbatch_args == {"mail-type": "END", "time-min": "00:04:00", "nice": 0}
    assert spec.slurm.sbatch_args == args
