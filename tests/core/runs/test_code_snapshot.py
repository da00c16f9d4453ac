"""The frozen code: its files, shared while equal, made again if damaged."""

import errno
import os
import shutil
import subprocess
import time
from pathlib import Path
from unittest import mock

import pytest

from slurm_job_kit.jobs.base.errors import UserError
from slurm_job_kit.jobs.runs import code_snapshot
from tests.core.run_files import unlock


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
    paths = (os.path.join(root, name) for root, _, names in os.walk(folder) for name in names)
    return sorted({os.path.relpath(path, folder) for path in paths} - {code_snapshot.LIST})


@pytest.fixture
def take(tmp_path, repository):
    (tmp_path / "root").mkdir()
    return lambda: code_snapshot.take(repository, tmp_path / "root")


def test_tracked_and_untracked_files_are_frozen_and_ignored_ones_are_not(take, repository):
    write(repository, "pkg/__pycache__/b.cpython-311.pyc", "x")
    assert files(take()) == [".gitignore", "a.py", "pkg/b.py", "runs/tracked.py"]


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


def test_frozen_files_are_read_only_and_executables_stay_so(take, repository):
    (repository / "a.py").chmod(0o755)
    assert (take() / "a.py").stat().st_mode & 0o777 == 0o555


def test_a_file_that_grows_while_it_is_copied_makes_no_damaged_snapshot(
    take, repository, monkeypatch
):
    copy = shutil.copyfile

    def copy_grown(path, *args, **kwargs):
        if Path(path).name == "a.py":  # as the output of the command that submits
            with open(path, "a") as file:
                file.write("# one line more\n")
        return copy(path, *args, **kwargs)

    monkeypatch.setattr(shutil, "copyfile", copy_grown)
    code = take()
    assert (code / "a.py").read_text() == "# a.py\n# one line more\n"
    assert code_snapshot.damage(code) is None
    assert take() == code


def test_what_ranks_leave_in_their_working_directory_breaks_no_snapshot(take):
    code = take()
    unlock(code)
    for name in ("core.7", "pkg/out.log", "pkg/__pycache__/b.pyc"):
        write(code, name, "x")
    assert code_snapshot.damage(code) is None


@pytest.mark.parametrize(
    ("harm", "named"),
    [
        (lambda code: write(code, "a.py", "other"), "a file of {code} was changed"),
        (lambda code: os.system(f"cd {code}; rm a.py; mkfifo a.py"), "a.py: not a regular file"),
        (lambda code: shutil.rmtree(code / "pkg"), "{code}/pkg/b.py is missing"),
        (lambda code: (code / code_snapshot.LIST).unlink(), ".frozen-files is missing"),
    ],
)
def test_a_damaged_copy_is_named_and_made_anew(take, harm, named):
    code = take()
    unlock(code)
    (code / "a.py").chmod(0o644)
    harm(code)
    assert str(code_snapshot.damage(code)).endswith(named.format(code=code))
    assert take() == code and code_snapshot.damage(code) is None
    assert files(code) == [".gitignore", "a.py", "pkg/b.py", "runs/tracked.py"]


def test_nothing_but_bytecode_can_be_written_into_frozen_code(take):
    code = take()
    modes = {path: path.stat().st_mode & 0o222 for path in [code, *code.rglob("*")]}
    assert {path.name for path, mode in modes.items() if mode} == {"__pycache__"}
    code_snapshot.delete(code)
    assert not code.exists()


@pytest.mark.parametrize("mode", [0o700, 0o750, 0o755])
def test_frozen_code_has_the_mode_of_its_run_and_is_shared_by_runs_of_that_mode(
    repository, tmp_path, mode
):
    (tmp_path / "root").mkdir()
    (repository / "pkg/b.py").chmod(0o600)  # as a strict umask leaves it
    take = code_snapshot.take
    codes = [take(repository, tmp_path / "root", mode=each) for each in (mode, 0o700, mode)]
    assert codes[0] == codes[2] and (codes[0] == codes[1]) == (mode == 0o700)
    for code in {*codes}:
        assert code_snapshot.damage(code) is None
    for folder in (codes[0], codes[0] / "pkg"):
        assert folder.stat().st_mode & 0o777 == mode & ~0o222
    assert (codes[0] / "pkg/b.py").stat().st_mode & 0o777 == 0o400 | mode & 0o444


def test_a_repository_that_git_does_not_read_is_refused_with_its_words(take, repository):
    shutil.rmtree(repository / ".git")  # as of a worktree or submodule whose repository is gone
    (repository / ".git").write_text("gitdir: /nowhere/worktrees/x\n")
    words = "not a git repository: /nowhere"
    with pytest.raises(UserError, match=f"(?s)git does not read {repository}, .*{words}"):
        take()


def make_outside(folder):
    """Make a folder beside the repository, which is a repository, too."""
    subprocess.run(["git", "init", "-q", folder], check=True)
    write(folder, "b.py", "# of somebody else\n")
    return folder


@pytest.mark.parametrize("is_tracked", [False, True])
@pytest.mark.parametrize("is_with_git", [False, True])
def test_a_link_leads_out_of_the_repository_or_to_the_copy(
    take, repository, tmp_path, is_tracked, is_with_git
):
    outside = make_outside(tmp_path / "outside")
    for folder in (repository, make_outside(repository / "libs")):
        os.symlink("/etc/shadow", folder / "shadow")
        os.symlink(repository / "pkg/b.py", folder / "inside")
        os.symlink(repository / ".git", folder / "hidden")
        os.symlink(repository, folder / "top")
        os.symlink("shadow", folder / "chain")
        os.symlink(outside, folder / "folder")
        os.symlink(os.path.relpath(outside / "b.py", folder), folder / "relative")
        if is_tracked:
            names = ("shadow", "chain", "folder", "relative", "inside", "hidden", "top")
            subprocess.run(["git", "-C", folder, "add", *names], check=True)
    if not is_with_git:
        shutil.rmtree(repository / ".git")
    code = take()
    for folder in (code, code / "libs"):
        to = {"shadow": "/etc/shadow", "folder": str(outside), "hidden": f"{repository}/.git"}
        to["chain"] = "shadow"
        assert {name: os.readlink(folder / name) for name in to} == to
        assert os.path.realpath(folder / "relative") == str(outside / "b.py")
        assert (folder / "inside").samefile(code / "pkg/b.py")
        assert (folder / "top").samefile(code)
    assert not any("folder/" in name for name in code_snapshot.files_of(code))
    assert code_snapshot.damage(code) is None


@pytest.mark.parametrize("is_ignored", [False, True])
@pytest.mark.parametrize("place", ["outside", "repository/pkg"])
def test_a_folder_that_is_now_a_link_stays_a_link(take, repository, tmp_path, place, is_ignored):
    """git still lists the files that it tracks there, and a copy would be of those elsewhere."""
    make_outside(tmp_path / "outside")
    write(repository, "old/b.py", "")
    subprocess.run(["git", "-C", repository, "add", "."], check=True)
    shutil.rmtree(repository / "old")
    os.symlink(tmp_path / place, repository / "old")
    if is_ignored:
        (repository / ".gitignore").write_text("old\n*.pt\ndata/\n")
    code = take()
    assert os.path.lexists(code / "old") == os.path.islink(code / "old") != is_ignored
    assert "old/b.py" not in code_snapshot.files_of(code)
    assert (code / "pkg/b.py").read_text() == "# pkg/b.py\n"
    assert (tmp_path / "outside/b.py").read_text() == "# of somebody else\n"


def test_a_runs_root_within_the_repository_is_left_out_and_one_around_it_is_not(repository):
    (repository / "out").mkdir()
    first = code_snapshot.take(repository, repository / "out")
    write(repository, "out/first/1/spec.json", "{}")
    assert code_snapshot.take(repository, repository / "out") == first
    assert "a.py" in files(code_snapshot.take(repository, repository.parent))


@pytest.mark.parametrize("is_git_there", [True, False])
def test_without_git_everything_but_hidden_files_and_runs_is_frozen(
    tmp_path, monkeypatch, is_git_there
):
    folder = tmp_path / "plain"
    names = ("a.py", ".venv/x.py", ".hidden", "out/r.json", "pkg/__pycache__/a.pyc", "runs/b.py")
    for name in names:
        write(folder, name, "x")
    if not is_git_there:  # a compute node may lack it
        subprocess.run(["git", "init", "-q", folder], check=True)
        monkeypatch.setenv("PATH", "/nowhere")
    code = code_snapshot.take(folder, folder / "out")
    assert files(code) == ["a.py", "runs/b.py"]


def test_too_much_code_is_an_error_that_names_the_largest_files(take, repository, monkeypatch):
    write(repository, "weights.bin", "x" * 2**20)
    monkeypatch.setattr(code_snapshot, "MAX_MIB", 1)
    with pytest.raises(UserError, match=r"more than 1 MiB; the largest: weights.bin \(1.0 MiB\), "):
        take()


def test_an_equal_copy_of_an_earlier_week_is_not_taken(take, monkeypatch):
    code = take()
    monkeypatch.setattr(time, "strftime", lambda _: "209901")
    later = take()
    assert later != code and code_snapshot.digest_in(later.name) == code_snapshot.digest_in(
        code.name
    )
    assert code_snapshot.NAME.fullmatch(later.name)


def test_a_copy_that_fails_leaves_nothing(take, tmp_path, monkeypatch):
    full = mock.Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(OSError, match="No space"):
        take()
    assert os.listdir(tmp_path / "root/.code") == []
