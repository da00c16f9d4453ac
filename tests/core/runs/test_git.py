"""git runs no program that the configuration of a repository names."""

import os
import shutil
import subprocess

import pytest

from slurm_job_kit.jobs.errors import UserError
from slurm_job_kit.jobs.runs.code_snapshot import source_files
from slurm_job_kit.jobs.runs.freeze import provenance

WHO = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always")


def git(folder, *words):
    return subprocess.run(
        ["git", "-C", folder, *WHO, *words], check=False, capture_output=True, text=True
    )


def make(folder):
    """Make a repository with a commit, and a change of its file a.py."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q")
    (folder / ".gitattributes").write_text("*.py filter=x diff=x\n")
    for name in ("a.py", "same.py"):
        (folder / name).write_text("1\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "x")
    (folder / "a.py").write_text("2\n")
    return folder


def config(key, more=""):
    return lambda folder, script: git(folder, "config", key, f"{script}{more}")


def hook(folder, script):
    (folder / ".git/hooks").mkdir(exist_ok=True)
    shutil.copy(script, folder / ".git/hooks/post-index-change")


def hooks_path(folder, script):
    hook(folder, script)
    (folder / ".git/hooks").rename(folder / "hooks")
    git(folder, "config", "core.hooksPath", str(folder / "hooks"))


def included(key, condition=""):
    def plant(folder, script):
        (folder / "other").write_text(f'[filter "x"]\n{key} = {script}\n')
        where = f"includeIf.gitdir:{folder}/.path" if condition else "include.path"
        git(folder, "config", where, str(folder / "other"))

    return plant


def of_worktree(folder, script):
    git(folder, "config", "extensions.worktreeConfig", "true")
    git(folder, "config", "--worktree", "filter.x.clean", str(script))


def required(folder, script):
    config("filter.x.clean")(folder, script)
    git(folder, "config", "filter.x.required", "true")


def partial_clone(url, key):
    """Delete the blob of HEAD, so that git asks the promisor for it."""

    def plant(folder, script):
        blob = git(folder, "rev-parse", "HEAD:a.py").stdout.strip()
        (folder / ".git/objects" / blob[:2] / blob[2:]).unlink()
        for name, value in {
            "core.repositoryFormatVersion": "1",
            "extensions.partialClone": "origin",
            "remote.origin.promisor": "true",
            "remote.origin.url": url.format(script),
            "protocol.ext.allow": "always",
            key: str(script),
        }.items():
            git(folder, "config", name, value)

    return plant


NAMED = {
    "fsmonitor": config("core.fsmonitor"),
    "hook": hook,
    "hooksPath": hooks_path,
    "clean": config("filter.x.clean"),
    "process": config("filter.x.process"),
    "required": required,
    "include": included("clean"),
    "includeIf": included("process", "gitdir"),
    "worktree": of_worktree,
    "external": config("diff.external"),
    "command": config("diff.x.command"),
    "textconv": config("diff.x.textconv"),
    "uploadpack": partial_clone("/nowhere", "remote.origin.uploadpack"),
    "ssh": partial_clone("ssh://host/x", "core.sshCommand"),
    "gitProxy": partial_clone("git://host/x", "core.gitProxy"),
    "ext": partial_clone("ext::{} %S", "x.y"),
    "vcs": partial_clone("x", "remote.origin.vcs"),
}


def in_submodule(folder):
    """Make the folder a submodule of a new repository; return that one."""
    outer = make(folder.parent / "outer")
    git(outer, "submodule", "--quiet", "add", str(folder), "sub")
    git(outer, "commit", "-qm", "x")
    (outer / "sub/a.py").write_text("2\n")
    return outer, outer / "sub"


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script"
    path.write_text(f"#!/bin/sh\ntouch {tmp_path}/mark\n")
    path.chmod(0o755)
    return path


def touch(folder, time):  # then a diff writes the index, and git runs a hook
    os.utime(folder / "same.py", (time, time))


def freeze(folder):
    touch(folder, 2)
    return source_files(folder), provenance(folder, "c", "python3").git_diff


@pytest.mark.parametrize("name", NAMED)
def test_a_freeze_runs_nothing_that_the_repository_names(tmp_path, script, name, monkeypatch):
    folder, mark = make(tmp_path / "code"), tmp_path / "mark"
    (tmp_path / "git-remote-x").symlink_to(script)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    NAMED[name](folder, "x" if name == "vcs" else script)
    touch(folder, 1)
    git(folder, "diff", "HEAD")
    git(folder, "status")
    assert mark.exists(), "plain git runs it"
    mark.unlink()
    files, diff = freeze(folder)
    assert not mark.exists() and "a.py" in files
    assert diff is None if "partial" in NAMED[name].__qualname__ else "+2" in diff


@pytest.mark.parametrize(
    ("name", "form"),
    [
        *(("fsmonitor", "short"), ("clean", "short"), ("process", "short"), ("clean", "log")),
        *(("fsmonitor", "diff"), ("process", "diff"), ("command", "diff"), ("textconv", "diff")),
    ],
)
def test_nor_what_a_submodule_names(tmp_path, script, name, form):
    outer, sub = in_submodule(make(tmp_path / "code"))
    git(outer, "config", "diff.submodule", form)
    git(sub, "commit", "-qam", "y")
    NAMED[name](sub, script)
    (sub / "a.py").write_text("3\n")
    git(outer, "diff", "HEAD")
    git(sub, "diff", "HEAD")
    assert (tmp_path / "mark").exists()
    (tmp_path / "mark").unlink()
    files, diff = freeze(outer)
    assert not (tmp_path / "mark").exists()
    assert "sub/a.py" in files and "+Subproject commit" in diff


def test_nor_what_an_inner_repository_names(tmp_path, script):
    folder = make(tmp_path / "code")
    for name in ("fsmonitor", "clean"):
        NAMED[name](make(folder / name), script)
    assert {"fsmonitor/a.py", "clean/a.py"} <= freeze(folder)[0].keys()
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("is_changed", [False, True])
def test_a_filter_of_the_user_works_such_as_that_of_git_lfs(tmp_path, monkeypatch, is_changed):
    (tmp_path / "config").write_text('[filter "x"]\nclean = sed s/2/big/\nrequired\n')
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
    folder = make(tmp_path / "code")
    if is_changed:
        git(folder, "config", "filter.x.clean", f"touch {tmp_path}/mark")
    assert "+big" in freeze(folder)[1]
    assert not (tmp_path / "mark").exists()


def test_git_lfs_runs_no_extension_that_the_repository_names(tmp_path, monkeypatch, script):
    """Its part is played by a filter of the user that asks git as git-lfs does."""
    (tmp_path / "lfs").write_text('#!/bin/sh\neval "$(git config lfs.extension.x.clean)"\ncat\n')
    (tmp_path / "lfs").chmod(0o755)
    (tmp_path / "config").write_text(f'[filter "x"]\nclean = {tmp_path}/lfs\n')
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
    folder = make(tmp_path / "code")
    git(folder, "config", "lfs.extension.x.clean", str(script))
    assert "+2" in freeze(folder)[1]
    assert not (tmp_path / "mark").exists()


def test_a_filter_that_git_cannot_be_asked_to_leave_out_is_refused(tmp_path, script):
    folder = make(tmp_path / "code")
    (folder / ".gitattributes").write_text("*.py filter=x=y\n")
    git(folder, "config", "filter.x=y.clean", str(script))
    with pytest.raises(UserError, match=r"filter.x=y.clean\n  hint: "):
        freeze(folder)
    assert not (tmp_path / "mark").exists()


def test_a_diff_that_no_reader_of_the_record_would_take_is_not_recorded(tmp_path, capfd):
    folder = make(tmp_path / "code")
    (folder / "a.py").write_text("\x01\n" * 6_000_000)
    known = provenance(folder, "c", "python3")
    assert known.git_sha and known.git_diff is None
    assert "the diff is not recorded" in capfd.readouterr().err
