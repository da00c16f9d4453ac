"""A run is found by its directory, run id, job id or name."""

import argparse

import pytest

from slurm_job_kit.jobs.base.files import relink
from slurm_job_kit.jobs.commands import arguments
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.runs import lookup
from slurm_job_kit.jobs.runs.lookup import NoSuchRunError, find
from tests.core.run_files import write_json


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("KIT_RUNS", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def make(root, name, run_id):
    run = RunDir(root / name / run_id)
    run.path.mkdir(parents=True)
    run.spec.write_text("{}")
    relink(root / name / "latest", run_id)
    return run


@pytest.fixture
def three(root):
    return [make(root, name, f"2026010{i}") for i, name in enumerate(("a", "b", "a"), 1)]


def test_all_runs_are_listed_newest_first_and_once(three):
    assert lookup.all_runs() == three[::-1]


def test_a_run_is_found_by_each_of_its_names(root, three):
    first, second, newest = three
    lookup.remember(first, "12_3")
    assert find(str(first.path)) == first
    assert find("runs/a/20260101/") == first
    assert find("20260102") == second
    assert find("a") == find(None) == newest
    assert find(str(root / "a/latest")) == newest
    assert find("12_3") == first


def test_a_home_directory_that_the_shell_did_not_expand_is_found(root, three, monkeypatch):
    """make status RUN=~/x: zsh and dash leave ~ in it."""
    monkeypatch.setenv("HOME", str(root))
    assert find("~/a/20260101") == three[0]
    parser = argparse.ArgumentParser()
    arguments.add_config(parser)
    assert parser.parse_args(["~/x.yaml"]).config == root / "x.yaml"


@pytest.mark.parametrize("text", ["far", "20260109", None, "7", "runs/far/20260109"])
def test_each_name_of_a_run_elsewhere_is_its_real_directory(root, three, text):
    run = make(root.parent / "scratch", "far", "20260109")
    (root / "far").mkdir()
    relink(root / "far/20260109", str(run.path))
    lookup.remember(run, "7")  # as submit does
    run_dir = find(text)
    assert run_dir == run
    assert not run_dir.path.is_symlink()
    assert run in lookup.all_runs()


def test_a_run_that_was_refused_before_it_started_is_not_the_newest_of_its_name(three):
    first, _, newest = three
    write_json(first.submission, {"argv": [], "job_id": "7"})
    assert find("a") == find(None) == first
    assert find(newest.run_id) == newest
    write_json(newest.result, {"status": "held"})
    assert find("a") == find(None) == newest


def test_a_job_id_of_a_cluster_belongs_to_the_run_that_was_submitted_last(three):
    for run in three[:2]:
        lookup.remember(run, "7")
    assert lookup.recall("7") == three[1]
    three[1].spec.unlink()
    three[1].path.rmdir()
    assert lookup.recall("7") is None
    lookup.remember(three[0], "7", "big")
    lookup.remember(three[2], "7", "small")
    assert lookup.recall("7", "big") == three[0]
    assert lookup.recall("7", "other") is None


@pytest.mark.parametrize("text", ["x", "", "77", "*", "/etc", "../..", "x" * 5000, "²"])
def test_any_other_text_is_a_users_error(three, text):
    with pytest.raises(NoSuchRunError, match="no run "):
        find(text)


def test_a_typing_error_is_answered_with_similar_names(root):
    make(root, "resnet", "20260101")
    with pytest.raises(NoSuchRunError, match="did you mean resnet"):
        find("resnt")


def test_without_runs_there_is_a_hint(root):
    with pytest.raises(NoSuchRunError, match="begin with make submit CONFIG"):
        find(None)


def test_the_runs_root_of_the_spec_has_precedence_over_the_variable(root, monkeypatch):
    assert lookup.runs_root("/x") != lookup.runs_root() == root
    monkeypatch.delenv("KIT_RUNS")
    assert lookup.runs_root() == root.parent / "runs"


def test_a_run_directory_that_lost_its_spec_is_still_found_by_its_path(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(NoSuchRunError):
        find(str(tmp_path))
    (tmp_path / "code").symlink_to("gone")
    assert find(str(tmp_path)).path == tmp_path
