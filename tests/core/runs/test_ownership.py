"""What a run executes is its user's own: who asks it, and how a resume makes it so; modes."""

import os
import shutil
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_job_kit.jobs import installation, records
from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.attempt.open import open_attempt
from slurm_job_kit.jobs.errors import UserError
from slurm_job_kit.jobs.records.frozen import Part, Provenance, Revision
from slurm_job_kit.jobs.rundir import RunDir
from slurm_job_kit.jobs.runs import code_snapshot, lookup, ownership, revision, run_lock
from tests.core.run_files import frozen, make_kit, unlock

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="needs root to give files away")
COLLEAGUE, GROUP = 4001, 4002
SCRIPTS = installation.HOME / "slurm"


def give(path):
    os.chown(path, COLLEAGUE, COLLEAGUE, follow_symlinks=False)


def open_to_group(path):
    path.chmod(0o770)


def other_folder(path):
    """A colleague's folder to which the user's own link leads."""
    give(path.resolve())


def link_to_own(path):
    path.rename(path.with_suffix(".kept"))
    path.symlink_to(path.with_suffix(".kept"))


@pytest.fixture
def run(tmp_path):
    """A run with a kit that has only the file by which it is known."""
    run = frozen(tmp_path / "runs/tiny/1")
    run.attempt(1).path.mkdir()
    run.setup.write_text("echo ran\n")
    for link in (run.code, run.kit):
        folder = make_kit(tmp_path / f"a-{link.name}")
        link.symlink_to(folder)
    return run


@pytest.fixture
def frozen_run(submitted, tmp_path):
    """A run with copies of its own; the tests share those of other runs."""
    copies = tmp_path / "copies"
    for link in (submitted.code, submitted.kit):
        shutil.copytree(link.resolve(), copies / link.resolve().name, symlinks=True)
        target = copies / link.resolve().name
        link.unlink()
        link.symlink_to(target)
    yield submitted
    unlock(copies)


def ask_python(run):
    me = run_lock.process(os.getpid())
    with pytest.raises(UserError) as caught:
        open_attempt(run, me, ["localhost"])
    assert not run.owner.exists() and not run.attempt(1).plan.exists()
    return str(caught.value)


def ask_script(*words, **variables):
    env = os.environ | {"SLURM_JOB_ID": "7", "SLURM_NODEID": "0"} | variables
    done = subprocess.run(
        ["bash", *map(str, words)], env=env, capture_output=True, text=True, timeout=20
    )
    assert done.returncode == 1 and "ran" not in done.stdout
    return done.stderr


def ask_batch(run):
    return ask_script(SCRIPTS / "ddp.sbatch", run.path)


def ask_agent(run):
    said = ask_script(SCRIPTS / "agent.sh", run.path, "1", "10.0.0.1:15000", "/bin/true")
    assert run.attempt(1).agent_error(0).read_text() in said.partition("error: ")[2]
    return said


@pytest.mark.parametrize("ask", [ask_python, ask_batch, ask_agent])
@pytest.mark.parametrize(
    ("harm", "name"),
    [
        *((give, name) for name in ("spec.json", "setup.sh", "code", "kit")),
        *((open_to_group, name) for name in ("spec.json", "setup.sh", "code", "kit")),
        *((link_to_own, name) for name in ("spec.json", "setup.sh")),
        *((other_folder, name) for name in ("code", "kit")),
    ],
)
def test_what_others_made_or_may_change_is_not_executed(run, harm, name, ask):
    harm(run.path / name)
    said = ask(run)
    assert name in said or os.path.basename(os.readlink(run.path / name)) in said
    assert "resume" in said


def test_what_the_user_alone_may_write_is_executed(run):
    ownership.check(run)
    run.setup.write_text("export KIT_PYTHON=/bin/true\necho ran\n")
    argv = ["bash", SCRIPTS / "agent.sh", run.path, "1", "10.0.0.1:15000", "/bin/true"]
    env = os.environ | {"SLURM_NODEID": "0"}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr


def all_of(run):
    for path in (run.path, *run.path.rglob("*"), run.code.resolve(), run.kit.resolve()):
        give(path)


def continued(run, slurm):
    slurm.set_state("4711", "CANCELLED")
    slurm.install("sbatch", "echo 'Submitted batch job 4712'")
    slurm.answer("sbatch", "", when="--test-only*")
    run.cancelled.write_text("2026-01-01 00:00:00: jobs cancel: 4711\n")


def test_a_resume_of_anothers_run_asks_and_makes_it_the_users_own(frozen_run, slurm, capsys):
    run = frozen_run
    continued(run, slurm)
    all_of(run)
    code, digest = run.code.resolve(), code_snapshot.digest_in(run.code.resolve().name)
    assert main(["resume", "tiny"]) == 2
    said = capsys.readouterr().err
    assert f"belongs to user {COLLEAGUE}" in said and f"as you: {code}" in said and "--yes" in said
    assert run.code.resolve() == code and run.spec.stat().st_uid == COLLEAGUE
    assert main(["resume", "tiny", "--yes"]) == 0
    assert run.code.resolve() != code and run.code.resolve().name.startswith(f"{digest}-0")
    assert ownership.problem(run) is None
    known = records.read(Provenance, run.provenance)
    assert known is not None and known.code == digest


def test_code_that_a_colleague_has_changed_is_not_made_the_users_own(frozen_run, slurm, capsys):
    run = frozen_run
    continued(run, slurm)
    all_of(run)
    file = next(each for each in code_snapshot.files_of(run.code).values() if not each.is_symlink())
    file.chmod(0o644)
    file.write_text("evil")
    assert main(["resume", "tiny", "--yes"]) == 2
    assert "was changed" in capsys.readouterr().err
    assert run.spec.stat().st_uid == COLLEAGUE


def test_an_interpreter_that_a_colleague_named_is_not_put_into_a_setup_script(
    frozen_run, slurm, capsys
):
    run = frozen_run
    continued(run, slurm)
    known = records.read(Provenance, run.provenance)
    assert known is not None
    records.write(run.provenance, replace(known, interpreter="/evil/python"))
    give(run.provenance)
    run.setup.unlink()
    assert main(["resume", "tiny"]) == 2
    assert f"{run.provenance} belongs to user {COLLEAGUE}" in capsys.readouterr().err
    assert not run.setup.exists()
    assert main(["resume", "tiny", "--yes"]) == 0
    assert ownership.problem(run) is None
    assert run.setup.read_text().splitlines()[0] == f"export KIT_PYTHON={sys.executable}"


@pytest.mark.parametrize("name", ["../../../x", "/tmp/x", "link/x", ".."])
def test_a_copy_of_a_colleagues_code_is_written_into_its_own_folder_alone(tmp_path, name):
    theirs, outside = tmp_path / ("0" * 64), tmp_path / "home"
    theirs.mkdir()
    outside.mkdir()
    (theirs / "link").symlink_to(outside)
    (outside / "x").write_text("mine")
    (theirs / code_snapshot.LIST).write_bytes(b"link\0" + name.encode())
    with pytest.raises(UserError, match="not a file of the frozen code"):
        code_snapshot.take_over(theirs, tmp_path, 0o700)
    assert not (tmp_path / ".code").exists()


def test_a_change_that_a_colleague_has_prepared_is_not_carried_out(run):
    evil = Revision(files=(Part("setup.sh", "evil"),))
    records.write(run.revision, evil)
    give(run.revision)
    with pytest.raises(UserError, match=f"belongs to user {COLLEAGUE}"):
        revision.complete(run)
    assert run.setup.read_text() != "evil"


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "a.py").write_text("x = 1\n")
    return folder


def test_a_copy_is_of_one_user_and_one_that_another_planted_is_not_taken(
    repository, tmp_path, monkeypatch
):
    root = tmp_path / "root"
    root.mkdir()
    mine = code_snapshot.take(repository, root)
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 4003)
        theirs = code_snapshot.take(repository, root)
    assert mine != theirs and "-0-" in mine.name and "-4003-" in theirs.name
    unlock(mine)
    (mine / "a.py").chmod(0o644)
    give(mine)
    assert code_snapshot.take(repository, root) == mine
    assert mine.stat().st_uid == 0 and len(list(root.glob(".code/.broken-*"))) == 1


@pytest.mark.parametrize("mode", [0o700, 0o750, 0o770, 0o777])
def test_nobody_else_may_write_bytecode_into_frozen_code(repository, tmp_path, mode):
    root = tmp_path / "root"
    root.mkdir()
    code = code_snapshot.take(repository, root, mode)
    folders = [code, code / "__pycache__"]
    assert not any(each.stat().st_mode & ownership.OTHERS_WRITE for each in folders)


@pytest.fixture(params=[0o022, 0o002, 0o077])
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(*paths):
    return {oct(path.stat().st_mode & 0o7777) for path in paths}


@pytest.mark.parametrize("dir_mode", ["0700", "0750", "0770"])
def test_the_folders_of_all_runs_are_closed_to_others_whatever_the_umask(here, umask, dir_mode):
    assert main(["freeze", "tiny.yaml", f"dir_mode='{dir_mode}'"]) == 0
    root = lookup.runs_root()
    (run,) = lookup.all_runs()
    lookup.remember(run, "7")
    closed = oct(int(dir_mode, 8) & 0o755)
    assert modes(root, root / "tiny", root / ".code", root / ".jobs") == {closed}
    assert modes(root / "tiny/latest") == {oct(int(dir_mode, 8))}


@pytest.mark.parametrize("dir_mode", ["0700", "0750", "0770"])
def test_a_shared_runs_root_shares_its_folders_and_gives_files_its_group(here, umask, dir_mode):
    root = lookup.runs_root()
    root.mkdir()
    os.chown(root, 0, GROUP)
    root.chmod(0o2770)
    assert main(["freeze", "tiny.yaml", f"dir_mode='{dir_mode}'"]) == 0
    (run,) = lookup.all_runs()
    lookup.remember(run, "7")
    others = int(dir_mode, 8) & 0o755
    assert modes(root / "tiny", root / ".code", root / ".jobs") == {oct(0o2070 | others)}
    assert modes(run.path) == {oct(0o2000 | int(dir_mode, 8))}
    assert {path.lstat().st_gid for path in root.rglob("*")} == {GROUP}
    folders = [path for path in root.rglob("*") if path.is_dir() and not path.is_symlink()]
    assert all(path.stat().st_mode & stat.S_ISGID for path in folders)


def test_whom_dir_mode_lets_in_may_write_what_is_written_in_place(here, umask):
    assert main(["freeze", "tiny.yaml", "dir_mode='0770'"]) == 0
    (run,) = lookup.all_runs()
    timeline, log = run.timeline("submit"), run.attempt(1).rank_log(0)
    shared = (run.checkpoints, log, log.parent, timeline, timeline.parent, run.rank_log(0).parent)
    assert all(path.stat().st_mode & 0o020 for path in shared)
    own = (run.spec, run.setup, run.spec_yaml, run.overrides, run.provenance)
    assert not any(path.stat().st_mode & 0o022 for path in own)
    ownership.check(run)


def test_a_run_directory_that_is_missing_leaves_the_umask(tmp_path, umask):
    ownership.share(RunDir(tmp_path / "gone"))
    assert os.umask(umask) == umask


def test_the_agent_and_all_that_it_starts_write_for_whom_dir_mode_lets_in(run, tmp_path, umask):
    run.path.chmod(0o770)
    argv = ["bash", SCRIPTS / "agent.sh", run.path, "1", "10.0.0.1:15000", tmp_path / "python"]
    (tmp_path / "python").write_text("#!/bin/sh\nmkdir made; umask\n")
    (tmp_path / "python").chmod(0o755)
    run.code.unlink()
    run.code.mkdir(0o755)
    env = os.environ | {"SLURM_NODEID": "0"}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=20)
    assert done.stdout == f"{umask & ~0o070:04o}\n", done.stderr
    assert (run.code / "made").stat().st_mode & 0o070 == 0o070


@pytest.mark.parametrize("name", [".code", "tiny"])
def test_no_run_is_made_behind_a_link_of_a_colleague(here, tmp_path, capsys, name):
    root, outside = lookup.runs_root(), tmp_path / "home"
    root.mkdir()
    outside.mkdir()
    (root / name).symlink_to(outside)
    give(root / name)
    assert main(["freeze", "tiny.yaml"]) == 2
    said = capsys.readouterr().err
    assert f"{root / name}: it is a link of another user: nothing is written; delete it" in said
    assert not any(outside.iterdir())


def test_a_closed_folder_of_a_colleague_is_named_with_the_way_out(here, monkeypatch, capsys):
    folder = lookup.runs_root() / "tiny"
    folder.mkdir(parents=True)
    give(folder)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != folder)
    assert main(["freeze", "tiny.yaml"]) == 2
    said = capsys.readouterr().err
    assert f"{folder} is closed to you: user {COLLEAGUE} owns it" in said
    assert f"chmod 2770 {folder}" in said
    assert not any(folder.iterdir())
