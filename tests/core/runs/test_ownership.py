"""A run is written by its owner only: who asks it, and the modes of the folders."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.base import installation
from slurm_job_kit.jobs.base.errors import UserError
from slurm_job_kit.jobs.runs import code_snapshot, lookup, run_lock
from tests.core.attempt.attempt_kit import open_attempt
from tests.core.run_files import frozen, make_kit, unlock

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="needs root to give files away")
COLLEAGUE, GROUP = 4001, 4002
SCRIPTS = installation.HOME / "slurm"


@pytest.fixture
def run(tmp_path):
    """A run with a kit that has only the file by which it is known."""
    run = frozen(tmp_path / "runs/tiny/1")
    run.attempt(1).path.mkdir()
    run.setup.write_text("echo ran\n")
    for link in (run.code, run.kit):
        link.symlink_to(make_kit(tmp_path / f"a-{link.name}"))
    return run


def ask_python(run):
    with pytest.raises(UserError) as caught:
        open_attempt(run, run_lock.process(os.getpid()), ["localhost"])
    assert not run.owner.exists() and not run.attempt(1).plan.exists()
    return str(caught.value)


def ask_script(*words):
    env = os.environ | {"SLURM_JOB_ID": "7", "SLURM_NODEID": "0"}
    argv = ["bash", *map(str, words)]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1 and "ran" not in done.stdout
    return done.stderr


def ask_batch(run):
    return ask_script(SCRIPTS / "ddp.sbatch", run.path)


def ask_agent(run):
    said = ask_script(SCRIPTS / "agent.sh", run.path, "1", "/bin/true")
    assert run.attempt(1).agent_error(0).read_text() in said.partition("error: ")[2]
    return said


@pytest.mark.parametrize("ask", [ask_python, ask_batch, ask_agent])
@pytest.mark.parametrize("name", ["", "code", "kit"])
@pytest.mark.parametrize("is_given", [False, True])
def test_a_run_that_others_made_or_may_write_is_not_executed(run, name, is_given, ask):
    folder = (run.path / name).resolve()
    os.chown(folder, COLLEAGUE, -1) if is_given else folder.chmod(0o770)
    said = ask(run)
    assert "only its owner continues a run" in said and "submit ... --from" in said


@pytest.mark.parametrize("mode", [0o750, 0o770])
def test_resume_and_cancel_of_a_colleagues_run_are_refused_with_the_way_out(
    submitted, slurm, capsys, mode
):
    submitted.path.chmod(mode)
    os.chown(submitted.path, COLLEAGUE, -1)
    before = {path: path.lstat().st_mtime_ns for path in submitted.path.rglob("*")}
    slurm.set_state("4711", "CANCELLED")
    for words in (["resume", "tiny"], ["cancel", "tiny"]):
        assert main(words) == 2
        said = capsys.readouterr().err
        assert f"belongs to user {COLLEAGUE}" in said and f"--from {submitted.path}" in said
    assert {path: path.lstat().st_mtime_ns for path in submitted.path.rglob("*")} == before


def test_a_copy_is_of_one_user_and_one_that_another_planted_is_not_taken(tmp_path, monkeypatch):
    repository, root = tmp_path / "repository", tmp_path / "root"
    repository.mkdir()
    root.mkdir()
    (repository / "a.py").write_text("x = 1\n")
    mine = code_snapshot.take(repository, root)
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 4003)
        assert code_snapshot.take(repository, root) != mine
    unlock(mine)
    os.chown(mine, COLLEAGUE, -1)
    assert code_snapshot.take(repository, root) == mine
    assert mine.stat().st_uid == 0 and len(list(root.glob(".code/.broken-*"))) == 1


def modes(*paths: Path) -> set[str]:
    return {oct(path.stat().st_mode & 0o7777) for path in paths}


@pytest.mark.parametrize("umask", [0o002, 0o077])
@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("dir_mode", [0o700, 0o750])
def test_others_write_no_folder_of_runs_and_a_shared_root_gives_its_group(
    here, umask, is_shared, dir_mode
):
    root, of_group, of_run = lookup.runs_root(), 0, 0
    if is_shared:
        root.mkdir()
        os.chown(root, 0, GROUP)
        root.chmod(0o2770)
        of_group, of_run = 0o2070, 0o2000
    before = os.umask(umask)
    try:
        assert main(["freeze", "tiny.yaml", f"dir_mode='0{dir_mode:o}'"]) == 0
        (run,) = lookup.all_runs()
        lookup.remember(run, "7")
    finally:
        os.umask(before)
    assert is_shared or (root / ".gitignore").read_text() == "*\n"
    folders = (root / "tiny", root / ".code", root / ".jobs")
    assert modes(*folders) == {oct(dir_mode | of_group)}
    assert modes(run.path) == {oct(dir_mode | of_run)}
    assert not any(file.stat().st_mode & 0o022 for file in (run.spec, run.setup))
    copies = [run.code, run.code / "__pycache__"]
    assert not any(int(mode, 8) & 0o022 for mode in modes(*copies))
    if is_shared:
        assert {path.lstat().st_gid for path in root.rglob("*")} == {GROUP}
        inner = [path for path in root.rglob("*") if path.is_dir() and not path.is_symlink()]
        assert all(path.stat().st_mode & stat.S_ISGID for path in inner)
