"""The frozen code: its files, shared while equal, made again if damaged."""

import errno
import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from slurm_job_kit.jobs.runs import code_snapshot
from slurm_job_kit.jobs.runs.code_snapshot import SnapshotError
from tests.unit import file_operations


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "repository"
    folder.mkdir()
    subprocess.run(["git", "init", "-q", folder], check=True)
    (folder / ".gitignore").write_text("data/\n*.pt\n")
    for name in ("a.py", "pkg/b.py", "data/big.bin", "x.pt", "runs/tracked.py"):
        write(folder, name, f"# {name}\n")
    subprocess.run(["git", "-C", folder, "add", "a.py", "runs"], check=True)
    return folder


def write(folder, name, text):
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


def files(folder):
    found = (os.path.join(root, name) for root, _, names in os.walk(folder) for name in names)
    return sorted({os.path.relpath(path, folder) for path in found} - {code_snapshot.LIST})


@pytest.fixture
def take(tmp_path, repository):
    (tmp_path / "root").mkdir()
    return lambda: code_snapshot.take(repository, tmp_path / "root")


def test_tracked_and_untracked_files_are_frozen_and_ignored_ones_are_not(take):
    assert files(take()) == [".gitignore", "a.py", "pkg/b.py", "runs/tracked.py"]


def test_bytecode_is_not_frozen(take, repository):
    code = take()
    write(repository, "pkg/__pycache__/b.cpython-311.pyc", "x")
    assert take() == code


def test_the_files_of_a_submodule_and_of_an_inner_repository_are_frozen(take, repository):
    """git lists each of them as one folder."""
    inner = repository / "libs"
    subprocess.run(["git", "init", "-q", inner], check=True)
    write(inner, ".gitignore", "*.bin\n")
    write(inner, "lib.py", "")
    write(inner, "big.bin", "")
    assert "libs/lib.py" in files(take()) and "libs/big.bin" not in files(take())
    who = ("-c", "user.name=x", "-c", "user.email=x")
    subprocess.run(["git", "-C", inner, "add", "."], check=True)
    subprocess.run(["git", "-C", inner, *who, "commit", "-q", "-m", "x"], check=True)
    subprocess.run(["git", "-C", repository, "add", "libs"], check=True, capture_output=True)
    assert "libs/lib.py" in files(take())


def test_a_file_that_the_server_does_not_show_fails_the_freeze(take, monkeypatch):
    """A run must not train with a part of its code."""
    lstat = Path.lstat

    def stale(path):
        if path.name == "b.py":
            raise OSError(errno.ESTALE, "stale")
        return lstat(path)

    monkeypatch.setattr(Path, "lstat", stale)
    with pytest.raises(OSError, match="stale"):
        take()


def test_an_edit_after_the_freeze_changes_nothing(take, repository):
    code = take()
    (repository / "a.py").write_text("edited")
    assert (code / "a.py").read_text() == "# a.py\n"
    assert take() != code


def test_equal_snapshots_are_shared(take):
    assert take() == take()


def test_a_freeze_looks_up_each_file_twice_and_reads_it_once(take, repository):
    take()
    with file_operations.watched(repository) as found:
        take()
    of_a_file = Counter(name for name, path in found.elements() if path == "a.py")
    assert of_a_file == {"stat": 1, "lstat": 1, "open": 1}


def test_everything_that_git_knows_is_shared(take, repository):
    os.symlink("pkg", repository / "link-to-folder")
    os.symlink("nowhere", repository / "dangling")
    code = take()
    assert take() == code
    assert len(os.listdir(code.parent)) == 1, "no copy was taken for broken"


def test_frozen_files_are_read_only_and_executables_stay_so(take, repository):
    (repository / "a.py").chmod(0o755)
    assert (take() / "a.py").stat().st_mode & 0o777 == 0o555


@pytest.mark.parametrize("name", ["a.py", "pkg"])
def test_a_snapshot_that_was_purged_is_made_anew(take, name):
    code = take()
    gone = code / name
    gone.unlink() if gone.is_file() else shutil.rmtree(gone)
    assert take() == code
    assert files(code) == [".gitignore", "a.py", "pkg/b.py", "runs/tracked.py"]


def test_a_snapshot_that_was_tampered_with_is_made_anew(take):
    code = take()
    (code / "a.py").chmod(0o644)
    (code / "a.py").write_text("tampered")
    take()
    assert (code / "a.py").read_text() == "# a.py\n"


def test_what_ranks_leave_in_their_working_directory_breaks_no_snapshot(take):
    code = take()
    for name in ("core.7", "pkg/out.log", "pkg/__pycache__/b.pyc"):
        write(code, name, "x")
    assert code_snapshot.is_whole(code)
    (code / "pkg/b.py").unlink()
    assert not code_snapshot.is_whole(code)


def test_a_snapshot_whose_list_is_gone_is_known_by_all_that_is_in_it(take):
    code = take()
    (code / code_snapshot.LIST).unlink()
    assert code_snapshot.is_whole(code)
    write(code, "core.7", "x")
    assert not code_snapshot.is_whole(code)


def test_a_runs_root_within_the_repository_is_left_out(repository):
    (repository / "out").mkdir()
    first = code_snapshot.take(repository, repository / "out")
    write(repository, "out/first/1/spec.json", "{}")
    assert code_snapshot.take(repository, repository / "out") == first


def test_without_git_everything_but_environments_and_runs_is_frozen(tmp_path):
    folder = tmp_path / "plain"
    for name in ("a.py", ".venv/x.py", "runs/r.json", "pkg/__pycache__/a.pyc", "pkg/runs/b.py"):
        write(folder, name, "x")
    (tmp_path / "root").mkdir()
    assert files(code_snapshot.take(folder, tmp_path / "root")) == ["a.py", "pkg/runs/b.py"]


def test_too_much_code_is_an_error_that_names_the_largest_file(take, repository, monkeypatch):
    write(repository, "weights.bin", "x" * 2**20)
    monkeypatch.setattr(code_snapshot, "MAX_MIB", 0)
    with pytest.raises(SnapshotError, match="the largest file is weights.bin"):
        take()


def test_a_copy_that_fails_leaves_nothing(take, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copy2", full)
    with pytest.raises(OSError, match="No space"):
        take()
    assert os.listdir(tmp_path / "root/.code") == []


def test_names_that_are_no_text_are_frozen(take, repository):
    name = b"caf\xe9.py"
    (repository / os.fsdecode(name)).write_text("x")
    assert name in os.listdir(os.fsencode(take()))


def test_a_repository_inside_of_the_runs_root_is_frozen_all_the_same(repository):
    code = code_snapshot.take(repository, repository.parent)
    assert "a.py" in files(code)


def test_a_git_that_ignores_a_package_of_the_kit_is_refused(take, repository):
    for name in ("jobs/runs/__init__.py", "slurm_job_kit/jobs/rundir.py"):
        write(repository, name, "")
    write(repository, ".gitignore", "runs/\n")
    with pytest.raises(SnapshotError, match="ignores the kit's own package"):
        take()
