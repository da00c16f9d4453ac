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
from tests.unit.run_files import unlock


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
    with file_operations.watched(repository) as operations:
        take()
    of_a_file = Counter(name for name, path in operations.elements() if path == "a.py")
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
    unlock(code)
    gone = code / name
    gone.unlink() if gone.is_file() else shutil.rmtree(gone)
    assert take() == code
    assert files(code) == [".gitignore", "a.py", "pkg/b.py", "runs/tracked.py"]


def test_a_file_that_grows_while_it_is_copied_makes_no_damaged_snapshot(
    take, repository, monkeypatch
):
    copy = shutil.copy2

    def copy_grown(path, *args, **kwargs):
        if Path(path).name == "a.py":  # as the output of the command that submits
            with open(path, "a") as file:
                file.write("# one line more\n")
        return copy(path, *args, **kwargs)

    monkeypatch.setattr(shutil, "copy2", copy_grown)
    code = take()
    assert (code / "a.py").read_text() == "# a.py\n# one line more\n"
    assert code_snapshot.is_whole(code)
    assert take() == code


def test_a_snapshot_that_was_tampered_with_is_made_anew(take):
    code = take()
    (code / "a.py").chmod(0o644)
    (code / "a.py").write_text("tampered")
    take()
    assert (code / "a.py").read_text() == "# a.py\n"


def test_what_ranks_leave_in_their_working_directory_breaks_no_snapshot(take):
    code = take()
    unlock(code)
    for name in ("core.7", "pkg/out.log", "pkg/__pycache__/b.pyc"):
        write(code, name, "x")
    assert code_snapshot.is_whole(code)
    (code / "pkg/b.py").unlink()
    assert not code_snapshot.is_whole(code)


@pytest.mark.parametrize(
    ("harm", "named"),
    [
        (lambda code: write(code, "a.py", "other"), "a.py was changed"),
        (lambda code: (code / "pkg/b.py").unlink(), "pkg/b.py is missing"),
        (lambda code: write(code, "numpy.py", "x"), "numpy.py was added"),
        (lambda code: write(code, "checkpoints/x.pt", "x"), "checkpoints/x.pt was added"),
    ],
)
def test_what_root_writes_into_frozen_code_is_named(take, harm, named):
    code = take()
    for folder in (code, code / "pkg"):
        folder.chmod(0o755)
    (code / "a.py").chmod(0o644)
    (code / "a.py").write_text("# a.py\n")
    harm(code)
    assert str(code_snapshot.damage(code)).endswith(named)
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


def break_owner(repository):
    for path in [repository, *repository.rglob("*")]:
        os.chown(path, 1234, 1234)


def break_index(repository):
    (repository / ".git/index").write_text("broken")


def break_link(repository):  # as of a worktree or submodule whose repository is gone
    shutil.rmtree(repository / ".git")
    (repository / ".git").write_text("gitdir: /nowhere/worktrees/x\n")


def make_bare(repository):
    subprocess.run(["git", "-C", repository, "config", "core.bare", "true"], check=True)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        pytest.param(
            break_owner,
            "dubious ownership",
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away"),
        ),
        (break_index, "index file"),
        (break_link, "not a git repository: /nowhere"),
        (make_bare, "work tree"),
    ],
)
def test_of_a_repository_that_git_does_not_read_nothing_ignored_is_frozen(
    take, repository, capfd, harm, words
):
    write(repository, "pkg/.gitignore", "token_file\n")
    write(repository, "pkg/token_file", "secret")
    write(repository, "local", "secret")
    write(repository, ".git/info/exclude", "local\n")
    harm(repository)
    names = files(take())
    assert "a.py" in names and "pkg/b.py" in names
    assert not {"data/big.bin", "x.pt", "pkg/token_file"} & {*names}
    assert "local" not in names or harm is break_link
    err = capfd.readouterr().err
    assert f"warning: git does not read {repository}: " in err and words in err


@pytest.mark.parametrize(
    ("harm", "is_known"),
    [(break_owner, True), (make_bare, True), (break_index, False), (break_link, False)],
)
def test_what_git_tracks_is_known_by_its_index(repository, harm, is_known):
    if harm is break_owner and os.geteuid() != 0:
        pytest.skip("only root can give files away")
    harm(repository)
    listing = code_snapshot.listing(repository)
    assert listing.is_git == is_known
    assert listing.tracked == ({"a.py", "runs/tracked.py"} if is_known else set())
    assert listing.untracked >= {"pkg/b.py", ".gitignore"}
    assert ("which files git tracks is not known" in str(listing.warning)) != is_known


@pytest.mark.parametrize("is_git_there", [True, False])
def test_a_users_own_ignore_file_counts_where_git_does_not_read(
    repository, tmp_path, monkeypatch, is_git_there
):
    write(tmp_path, "home/.gitconfig", "[core]\n\texcludesFile = ~/mine\n")
    write(tmp_path, "home/mine", "*.secret\n")
    write(repository, "x.secret", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    break_index(repository)
    if not is_git_there:
        monkeypatch.setenv("PATH", "/nowhere")
    listing = code_snapshot.listing(repository)
    assert "a.py" in listing.untracked and "x.secret" not in listing.untracked


@pytest.mark.parametrize("is_git_there", [True, False])
def test_the_lists_of_a_worktree_are_those_of_its_repository(
    repository, tmp_path, monkeypatch, is_git_there
):
    git = ["git", "-C", repository, "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "commit", "-qm", "x"], check=True)
    subprocess.run([*git, "worktree", "add", "-q", tmp_path / "tree"], check=True)
    write(repository, ".git/info/exclude", "local\n")
    write(tmp_path / "tree", "local", "")
    write(tmp_path / "tree", "new.py", "")
    (repository / ".git/config").write_text("[core")
    if not is_git_there:
        monkeypatch.setenv("PATH", "/nowhere")
    listing = code_snapshot.listing(tmp_path / "tree")
    assert listing.is_git == is_git_there
    assert "new.py" in listing.untracked and "local" not in listing.untracked


IGNORE = """\ufefffirst.txt
# comment
data/
[[:digit:]]*.num
\\[x\\].txt
*.pt
!keep.pt
/top.txt
docs/*.tmp
**/cache
logs/**
[ab].bin
sp\\#ce
"""
TREE = (
    *("a.py", "data/x", "lib/data/y", "x.pt", "lib/keep.pt", "top.txt", "lib/top.txt"),
    *("docs/a.tmp", "docs/sub/b.tmp", "u/v/cache/z", "logs/1/2.txt", "a.bin", "c.bin"),
    *("lib/.env", "lib/sub/.env", "lib/sub/kept.txt", "sp#ce", "data.py"),
    *("first.txt", "7.num", "[x].txt"),
)


@pytest.mark.parametrize("is_git_there", [True, False])
def test_ignore_files_mean_the_same_with_and_without_git(tmp_path, monkeypatch, is_git_there):
    folder = tmp_path / "repository"
    for name in TREE:
        write(folder, name, "x")
    write(folder, ".gitignore", IGNORE)
    write(folder, "lib/.gitignore", ".env\n!sub/.env\n")
    subprocess.run(["git", "init", "-q", folder], check=True)
    if not is_git_there:
        monkeypatch.setenv("PATH", "/nowhere")
    listing = code_snapshot.listing(folder)
    assert listing.is_git == is_git_there
    assert (listing.warning is None) == is_git_there
    assert listing.untracked == {
        *("a.py", "lib/keep.pt", "lib/top.txt", "docs/sub/b.tmp", "c.bin", "lib/sub/.env"),
        *("lib/sub/kept.txt", "data.py", ".gitignore", "lib/.gitignore"),
    }


def test_the_ignore_files_of_a_folder_without_a_repository_are_obeyed(take, repository, capfd):
    shutil.rmtree(repository / ".git")
    assert files(take()) == [".gitignore", "a.py", "pkg/b.py"]
    assert capfd.readouterr().err == ""


SECRETS = (".env", "deploy/server.pem", "id_rsa", ".netrc", "deploy/kubeconfig", "credentials.json")


def test_an_untracked_file_with_the_name_of_a_secret_is_left_out_with_a_warning(
    take, repository, capfd
):
    for name in (*SECRETS, ".env.example", "pkg/token.py", "tokenizer.json", "id_to_token.json"):
        write(repository, name, "x")
    names = {*files(take())}
    assert not {*SECRETS} & names
    assert {".env.example", "pkg/token.py", "tokenizer.json", "id_to_token.json"} <= names
    assert "holds a secret, and git does not track it" in capfd.readouterr().err
    subprocess.run(["git", "-C", repository, "add", ".env"], check=True)
    assert ".env" in files(take())


def test_a_snapshot_whose_list_is_gone_is_known_by_all_that_is_in_it(take):
    code = take()
    unlock(code)
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
