"""The target of --host, the command for the other host, and what refuses it. No ssh runs here."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

from slurm_job_kit.jobs import installation
from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.commands import host
from slurm_job_kit.jobs.commands.host import Target
from slurm_job_kit.jobs.errors import UserError


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("me@login:work/kit", Target("me@login", "work/kit")),
        ("login:/data/kit", Target("login", "/data/kit")),
        ("login:~/a b", Target("login", "a b")),
        ("login:~", Target("login", ".")),
        ("me@[::1]:kit", Target("me@::1", "kit")),
        ("login:a:b", Target("login", "a:b")),
    ],
)
def test_a_target_is_a_log_in_and_a_folder(text, target):
    assert host.parse(text) == target


@pytest.mark.parametrize(
    "text", ["-oProxyCommand=date:kit", "", "me@:kit", ":kit", "a b:kit", "a@b@c"]
)
def test_what_is_no_target_is_refused(text):
    with pytest.raises(UserError, match="user@login:DIR"):
        host.parse(text)


def test_without_a_folder_it_is_the_same_one_below_the_home_directory(monkeypatch, tmp_path):
    monkeypatch.setattr(installation, "IS_BY_MAKE", True)
    monkeypatch.setattr(installation, "ROOT", (tmp_path / "work/kit").resolve())
    monkeypatch.setenv("HOME", str(tmp_path))
    assert host.parse("login") == Target("login", "work/kit")
    monkeypatch.setenv("HOME", "/elsewhere")
    with pytest.raises(UserError, match="hint: write login:DIR"):
        host.parse("login:")


def test_without_ssh_the_user_learns_what_to_install(here, capsys):
    assert main(["status", "--host", "login:kit"]) == 2
    assert "OpenSSH" in capsys.readouterr().err


def test_the_host_may_be_set_once_and_other_commands_stay_here(here, monkeypatch, capsys):
    monkeypatch.setenv("KIT_HOST", "login:kit")
    assert main(["status"]) == 2  # there is no ssh
    assert main(["explain", "train.lr"]) == 0


def test_what_came_over_ssh_is_not_sent_on(here, monkeypatch, capfd):
    monkeypatch.setenv(host.CALLER, host.version())
    assert main(["status", "--host", "login:kit"]) == 0
    assert capfd.readouterr().err == ""
    monkeypatch.setenv(host.CALLER, "0.0.1")
    assert main(["status"]) == 0
    assert "0.0.1" in capfd.readouterr().err
    assert host.CALLER not in os.environ


@pytest.fixture
def repository(tmp_path):
    """A repository on the other host, whose kit prints its arguments; a profile that prints."""
    kit = tmp_path / "the repository/.venv/bin/kit"
    kit.parent.mkdir(parents=True)
    kit.write_text('#!/bin/sh\nprintf "%s|" "$@"; cat; exit 3\n')
    kit.chmod(0o755)
    (tmp_path / ".bash_profile").write_text("echo welcome\n")
    return tmp_path


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_words_arrive_unchanged_and_a_profile_prints_nothing_into_the_result(repository, shell):
    words = ["submit", "a b.yaml", "x='$(date)' \"`", "", "--set=train.lr=1", "* ~ !"]
    *_, command = host.remote(Target("login", "the repository"), words, is_terminal=False)
    env = {"PATH": os.environ["PATH"], "HOME": str(repository)}
    process = subprocess.Popen(
        [shell, "-c", command],
        cwd=repository,
        env=env,
        stdin=subprocess.PIPE,  # open, as that of ssh
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.read() == "".join(f"{word}|" for word in words)
    assert process.wait(timeout=60) == 3
    assert process.stderr.read() == "welcome\n"
    assert process.stdin is not None
    for stream in (process.stdin, process.stdout, process.stderr):
        stream.close()


def test_a_socket_lies_only_in_a_folder_of_this_user_alone(monkeypatch):
    import tempfile

    with tempfile.TemporaryDirectory(prefix="kit-", dir="/tmp") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        monkeypatch.setenv("HOME", "/nonexistent")
        assert host.socket_folder() == folder
        Path(folder).chmod(stat.S_IRWXU | stat.S_IXOTH)
        assert host.socket_folder() is None
        Path(folder).chmod(stat.S_IRWXU)


@pytest.mark.parametrize(
    ("settings", "is_shared"),
    [
        ("controlmaster false\ncontrolpersist no", True),
        ("controlmaster auto\ncontrolpath /x/%C", False),
        ("controlmaster false\ncontrolpath /x/%C", False),
    ],
)
def test_the_users_own_shared_connection_stays(tmp_path, monkeypatch, settings, is_shared):
    ssh = tmp_path / "ssh"
    ssh.write_text(f"#!/bin/sh\necho '{settings}'\n")
    ssh.chmod(0o755)
    monkeypatch.setattr(host, "socket_folder", lambda: "/run/mine")
    options = host.options(str(ssh), "login")
    assert any(option.startswith("-oControlPath=/run/mine/") for option in options) == is_shared


def test_a_configuration_that_does_not_answer_costs_the_sharing_only(tmp_path, monkeypatch):
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\nexec sleep 60\n")
    ssh.chmod(0o755)
    monkeypatch.setattr(host, "socket_folder", lambda: "/run/mine")
    monkeypatch.setattr(host, "CONFIG_S", 0.2)
    assert not any("Control" in option for option in host.options(str(ssh), "login"))
