"""A freeze makes a whole run directory or none, and keeps no secret."""

import os
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path

import pytest

from slurm_job_kit.jobs.base.errors import UserError
from slurm_job_kit.jobs.base.files import read_json
from slurm_job_kit.jobs.config.loaded import LoadedSpec
from slurm_job_kit.jobs.contract import records
from slurm_job_kit.jobs.contract.records.frozen import Overrides
from slurm_job_kit.jobs.contract.spec import Spec
from slurm_job_kit.jobs.runs import code_snapshot, lookup
from slurm_job_kit.jobs.runs import freeze as module
from slurm_job_kit.jobs.runs.freeze import freeze

SPEC = Spec(name="first", setup=["module load x"])
LOADED = LoadedSpec(SPEC, "name: first\n", ("train.lr=1",))


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("KIT_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "a.py").write_text("# first\n")
    return folder


def frozen(repository):
    with freeze(LOADED, repository) as run_dir:
        return run_dir


def test_a_run_directory_has_all_that_a_job_reads(root, repository):
    run = frozen(repository)
    assert run.path.parent == root / "first"
    assert Spec.from_json(run.spec.read_text()) == SPEC
    assert run.spec_yaml.read_text() == "name: first\n"
    assert records.read(Overrides, run.overrides) == Overrides(("train.lr=1",))
    assert (run.code / "a.py").read_text() == "# first\n"
    assert run.checkpoints.is_dir()
    assert run.timeline("rank-00000").parent.is_dir()
    assert run.path.stat().st_mode & 0o777 == 0o700
    assert run.rank_log(0).read_text() == "waiting for rank 0 to start\n"  # it can be followed


@pytest.mark.parametrize("name", ["", "..", "../elsewhere", "a/b", ".code"])
def test_no_run_is_made_outside_of_the_folder_of_its_name(root, repository, name):
    """The plugin check refuses such a name with its place in the spec."""
    loaded = LoadedSpec(Spec(name=name), "")
    with pytest.raises(UserError, match="^name: "), freeze(loaded, repository):
        pass
    assert not root.exists()


def test_latest_is_the_newest_run_that_was_made(root, repository):
    with pytest.raises(KeyboardInterrupt), freeze(LOADED, repository):
        raise KeyboardInterrupt
    assert not (root / "first").exists()
    frozen(repository)
    with freeze(LOADED, repository):  # its sbatch is slow
        newest = frozen(repository)
    assert (root / "first/latest").resolve() == newest.path
    (root / "first/latest").unlink()
    (root / "first/latest").mkdir()
    with freeze(LOADED, repository):  # its job is queued
        pass
    assert (root / "first/latest").is_dir()


@pytest.mark.parametrize("ending", ["", "-p07"])
@pytest.mark.parametrize("is_same_name", [True, False])
def test_a_run_is_newer_than_those_of_a_clock_that_was_ahead(
    root, repository, is_same_name, ending
):
    ahead = datetime.now(UTC) + timedelta(hours=9)
    older = frozen(repository).path
    (older.parents[1] / "other").mkdir()
    folder = older.parent if is_same_name else older.parents[1] / "other"
    older.rename(folder / f"{ahead:%Y%m%d-%H%M%S}-ffff{ending}")
    (root / "first/zz-notes-zz").mkdir(parents=True)
    newest = [frozen(repository) for _ in range(3)]
    assert lookup.find(None) == lookup.find("first") == newest[2]
    assert lookup.all_runs()[:3] == newest[::-1]


def test_all_times_of_a_new_run_are_those_of_the_submit(root, repository):
    (repository / "link").symlink_to("a.py")
    for path in (repository / "a.py", repository / "link"):
        os.utime(path, (0, 0), follow_symlinks=False)
    before = int(time.time())
    frozen(repository)
    assert min(path.lstat().st_mtime for path in root.rglob("*") if not path.is_dir()) >= before


def test_a_run_id_that_is_taken_harms_nobody(root, repository, monkeypatch):
    monkeypatch.setattr(module, "new_run_id", lambda _: "20260101-000000-abcd")
    run = frozen(repository)
    with pytest.raises(UserError, match="File exists"):
        frozen(repository)
    assert run.spec.is_file()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a file system")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("size=1m", "only 1 MiB are free"),
        ("size=1m,nr_inodes=1", "No space left on device"),
        ("ro", "Read-only file system"),
    ],
)
def test_a_full_or_read_only_runs_root_is_an_error(root, repository, options, words):
    root.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "x", root], check=True)
    try:
        with pytest.raises(UserError, match=words):
            frozen(repository)
        assert os.listdir(root) == []
    finally:
        subprocess.run(["umount", root], check=True)


def test_no_value_of_the_environment_is_kept(root, repository, monkeypatch):
    monkeypatch.setenv("API_TOKEN", "hunter2-hunter2")
    run = frozen(repository)
    texts = [path.read_text() for path in Path(run.path).rglob("*") if path.is_file()]
    assert not [text for text in texts if "hunter2" in text]
    assert "HOME" not in run.provenance.read_text()


def test_provenance_says_which_code_and_versions(root, repository):
    run = frozen(repository)
    known = read_json(run.provenance)
    assert known["code"] == code_snapshot.digest_in(run.code.resolve().name)
    assert known["versions"] == {name: version(name) for name in module.PACKAGES}
    assert known["interpreter"] == sys.executable
