"""Where the kit is, which repository a run takes, and how commands are written in messages."""

import subprocess
import sys
from pathlib import Path

import pytest

from slurm_job_kit.jobs.base import installation
from slurm_job_kit.jobs.base.errors import UserError
from slurm_job_kit.jobs.runs import code_snapshot, lookup

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def by_kit(monkeypatch):
    """The commands are called as `kit`."""
    monkeypatch.setattr(installation, "IS_BY_MAKE", False)


@pytest.fixture
def repository(tmp_path):
    """A folder in a git repository of the user."""
    (tmp_path / "mine/.git").mkdir(parents=True)
    (tmp_path / "mine/sub").mkdir()
    return tmp_path / "mine"


def test_a_clone_or_the_repository_of_the_user_is_frozen_from_any_folder(
    repository, tmp_path, monkeypatch, request
):
    for folder, frozen in ((ROOT / "tests/core", ROOT), (repository / "sub", repository)):
        monkeypatch.chdir(folder)
        assert code_snapshot.repository() == frozen
    monkeypatch.chdir(tmp_path)  # without git
    assert code_snapshot.repository() == ROOT
    request.getfixturevalue("by_kit")
    assert code_snapshot.repository() == tmp_path


def test_kit_keeps_the_runs_at_the_top_of_the_repository(repository, monkeypatch, by_kit):
    monkeypatch.delenv("KIT_RUNS", raising=False)
    monkeypatch.chdir(repository / "sub")
    assert lookup.runs_root() == repository / "runs"


def test_the_kit_is_frozen_as_one_package(tmp_path):
    kit = code_snapshot.take_kit(tmp_path)
    spec = kit / "slurm_job_kit/jobs/contract/spec.py"
    assert spec.is_file() and not spec.parent.is_symlink()
    assert not list(kit.rglob("*.pyc"))
    assert (kit / "slurm_job_kit/kit.mk").is_file()
    assert code_snapshot.damage(kit) is None
    assert code_snapshot.take_kit(tmp_path) == kit


@pytest.mark.parametrize(
    ("typed_to", "shown"),
    [("IS_BY_MAKE", "make cancel RUN=x"), ("TO_MAKE", "make cancel RUN=x"), ("", "kit cancel x")],
)
def test_a_job_names_the_command_of_who_submitted_it(tmp_path, monkeypatch, typed_to, shown):
    for name in ("IS_BY_MAKE", "TO_MAKE"):
        monkeypatch.setattr(installation, name, name == typed_to)
    ask = "from slurm_job_kit.jobs.base.installation import command; print(command('cancel', 'x'))"
    words = [sys.executable, "-c", ask]
    done = subprocess.run(words, cwd=code_snapshot.take_kit(tmp_path), stdout=-1, text=True)
    assert done.stdout == f"{shown}\n"


@pytest.mark.parametrize(
    ("words", "by_make", "installed"),
    [
        (("resume",), "make resume", "kit resume"),
        (("cancel", "a b"), "make cancel RUN='a b'", "kit cancel 'a b'"),
        (
            ("resume", "x", "train.epochs=9", "yes"),
            'make resume RUN=x SET="train.epochs=9" YES=1',
            "kit resume x train.epochs=9 --yes",
        ),
    ],
)
def test_a_message_names_the_command_that_the_user_has(words, by_make, installed, request):
    assert installation.command(*words) == by_make
    request.getfixturevalue("by_kit")
    assert installation.command(*words) == installed


@pytest.mark.parametrize(
    ("option", "by_make"),
    [("--yes", "YES=1"), ("--all", "FLAGS=--all"), ("--cluster local", "FLAGS='--cluster local'")],
)
def test_an_option_is_named_as_the_user_types_it(option, by_make, by_kit, monkeypatch):
    assert installation.option(option) == option
    assert installation.of_spec("sweep", "a b") == "kit sweep 'a b'"
    monkeypatch.setattr(installation, "TO_MAKE", True)  # make with the kit.mk of `kit init`
    assert installation.option(option) == by_make
    assert installation.of_spec("sweep", "a b") == "make sweep CONFIG='a b'"


def test_an_inner_repository_of_a_clone_is_frozen_and_not_the_clone(repository, monkeypatch):
    monkeypatch.setattr(installation, "ROOT", repository.parent)
    monkeypatch.chdir(repository)
    assert code_snapshot.repository() == repository


def test_a_home_directory_is_not_frozen(tmp_path, monkeypatch, by_kit):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="is no repository"):
        code_snapshot.repository()
