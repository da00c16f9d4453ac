"""What a freeze asks of git: it starts no hook, keeps the user's filters, and limits the diff."""

import os
import subprocess

import pytest

from slurm_job_kit.jobs.runs import freeze
from slurm_job_kit.jobs.runs.freeze import provenance


@pytest.fixture
def repository(tmp_path):
    """A repository with a change of a.py, of which a diff runs a hook."""
    folder = tmp_path / "code"
    folder.mkdir()
    for name in ("a.py", "same.py"):
        (folder / name).write_text("1\n")
    (folder / ".gitattributes").write_text("*.py filter=x\n")
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run(["git", "-C", folder, *who, *words], check=True)
    (folder / ".git/hooks").mkdir(exist_ok=True)
    hook = folder / ".git/hooks/post-index-change"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/mark\n")
    hook.chmod(0o755)
    (folder / "a.py").write_text("2\n")
    os.utime(folder / "same.py", (1, 1))  # then a diff writes the index
    return folder


def test_the_diff_of_a_freeze_starts_no_hook_and_has_the_users_filters(
    repository, tmp_path, monkeypatch
):
    (tmp_path / "config").write_text('[filter "x"]\nclean = sed s/2/big/\nrequired\n')
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
    diff = provenance(repository, "c").git_diff
    assert diff is not None and "+big" in diff
    assert not (tmp_path / "mark").exists()
    subprocess.run(["git", "-C", repository, "diff", "HEAD"], check=True, capture_output=True)
    os.utime(repository / "same.py", (2, 2))
    subprocess.run(["git", "-C", repository, "status"], check=True, capture_output=True)
    assert (tmp_path / "mark").exists(), "plain git runs it"


def test_a_diff_that_no_reader_of_the_record_would_take_is_not_recorded(
    repository, capfd, monkeypatch
):
    monkeypatch.setattr(freeze, "MAX_DIFF_MIB", 5e-5)
    known = provenance(repository, "c")
    assert known.git_sha and known.git_diff is None
    assert "the diff is not recorded" in capfd.readouterr().err
