"""A run is found by its directory, run id, job id or name."""

import pytest

from jobs.rundir import RunDir, relink, write_json
from jobs.runs import lookup
from jobs.runs.lookup import NoSuchRunError, find


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


def test_no_word_means_the_newest_run(three):
    assert find(None) == three[2]


def test_a_run_is_found_by_each_of_its_words(root, three):
    first, second, newest = three
    lookup.remember(first, "12_3")
    assert find(str(first.path)) == first
    assert find("runs/a/20260101/") == first
    assert find("20260102") == second
    assert find("a") == newest
    assert find(str(root / "a/latest")) == newest
    assert find("12_3") == first


def test_a_job_id_belongs_to_the_run_that_was_submitted_last(three):
    for run in three[:2]:
        lookup.remember(run, "7")
    assert lookup.recall("7") == three[1]


def test_two_clusters_may_give_the_same_job_id(three):
    lookup.remember(three[0], "7", "big")
    lookup.remember(three[1], "7", "small")
    assert lookup.recall("7", "big") == three[0]
    assert lookup.recall("7", "other") is None


def test_a_run_that_was_deleted_is_not_recalled(three):
    lookup.remember(three[0], "7")
    three[0].spec.unlink()
    three[0].path.rmdir()
    assert lookup.recall("7") is None


@pytest.mark.parametrize("word", ["x", "", "77", "*", "/etc", "../..", "x" * 5000, "²"])
def test_another_word_is_a_users_error(three, word):
    with pytest.raises(NoSuchRunError, match="no run "):
        find(word)


def test_a_typing_error_is_answered_with_what_is_near(root):
    make(root, "resnet", "20260101")
    with pytest.raises(NoSuchRunError, match="did you mean resnet"):
        find("resnt")


def test_without_runs_there_is_a_hint(root):
    with pytest.raises(NoSuchRunError, match="make submit starts one"):
        find(None)


def test_the_specs_choice_of_a_runs_root_goes_before_the_variable(root, monkeypatch):
    assert lookup.runs_root("/x") != lookup.runs_root() == root
    monkeypatch.delenv("KIT_RUNS")
    assert lookup.runs_root() == root.parent / "runs"


def test_only_a_submitted_run_has_a_job(three):
    write_json(three[0].submission, {"argv": [], "job_id": "7"})
    assert [lookup.job_id_of(run) for run in three[:2]] == ["7", None]


def test_a_run_directory_that_lost_its_spec_is_still_found_by_its_path(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(NoSuchRunError):
        find(str(tmp_path))
    (tmp_path / "code").symlink_to("gone")
    assert find(str(tmp_path)).path == tmp_path
