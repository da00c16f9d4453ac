"""Commands on another host: a real sshd on a loopback port, and a copy of the kit there."""

import contextlib
import getpass
import json
import os
import pty
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from slurm_job_kit.jobs.rundir import RunDir
from tests.local.local_kit import FOREIGN, REPOSITORY, wait_for

SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
SSH = shutil.which("ssh")
pytestmark = pytest.mark.skipif(
    not (SSHD and SSH and shutil.which("ssh-keygen")), reason="openssh-server is not installed"
)
LIMIT_S = 180
SERVER = """
ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
StrictModes no
UsePAM no
PidFile none
PermitRootLogin yes
PasswordAuthentication no
SetEnv {mark}
"""
# `closed` has the right key and no server.
CLIENT = """
Host login closed
  HostName 127.0.0.1
  User {user}
  IdentityFile {folder}/user_key
  IdentitiesOnly yes
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  LogLevel ERROR
Host login
  Port {port}
Host closed
  Port {closed}
"""

# It trains on the login node while all these tests run: it must leave the processor to them.
SLOW = """
import time
from torch import nn


class Slow(nn.Linear):
    def __init__(self):
        super().__init__(30, 2)

    def forward(self, measurements):
        time.sleep(0.05)
        return super().forward(measurements)
"""


class LoginNode:
    """An sshd, a clone of the kit behind it, and `python -m jobs` before it."""

    def __init__(self, folder: Path) -> None:
        self.mark = f"KIT_TEST_LOGIN={folder}"
        self.clone = folder / "a clone"
        self.log = folder / "sshd.log"
        copy_kit(self.clone)
        for key in ("host_key", "user_key"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True
            )
        port, closed = free_port(), free_port()
        values = {"folder": folder, "port": port, "closed": closed, "mark": self.mark}
        (folder / "sshd_config").write_text(SERVER.format(**values))
        (folder / "ssh_config").write_text(CLIENT.format(user=getpass.getuser(), **values))
        bin_ = folder / "bin"
        bin_.mkdir()
        (bin_ / "ssh").write_text(f'#!/bin/sh\nexec {SSH} -F {folder}/ssh_config "$@"\n')
        (bin_ / "ssh").chmod(0o755)
        self.sockets = tempfile.mkdtemp(prefix="kit-", dir="/tmp")  # a short path
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)} | {
            "PATH": f"{bin_}:{os.environ['PATH']}",
            "XDG_RUNTIME_DIR": self.sockets,
        }
        self._serve(folder)

    def _serve(self, folder: Path) -> None:
        if os.geteuid() == 0:  # Debian's sshd makes it at boot
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        with open(self.log, "wb") as log:
            argv = [str(SSHD), "-D", "-e", "-f", str(folder / "sshd_config")]
            self.server = subprocess.Popen(argv, stderr=log)
        wait_for(lambda: "Server listening" in self.log.read_text(), "sshd does not listen", 20)

    def start(self, *words, folder=None, output=subprocess.PIPE):
        target = f"login:{folder or self.clone}"
        return subprocess.Popen(
            [sys.executable, "-m", "jobs", *words, "--host", target],
            cwd=REPOSITORY,
            env=self.env,
            stdout=output,
            stderr=output,
            text=True,
        )

    def run(self, *words, folder=None):
        """(exit status, stdout, stderr) of a command."""
        process = self.start(*words, folder=folder)
        stdout, stderr = process.communicate(timeout=LIMIT_S)
        return process.returncode, stdout, stderr

    def processes(self, *words):
        """The ids of the processes behind sshd with these words in their command lines."""
        pids = []
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                environ = Path("/proc", entry, "environ").read_bytes().split(b"\0")
                line = Path("/proc", entry, "cmdline").read_bytes().decode().split("\0")
                if self.mark.encode() in environ and set(words) <= set(line):
                    pids.append(int(entry))
        return pids

    def why_no_terminal(self):
        """The end of sshd's log if it refuses a terminal, else None.

        It gives the terminal to the group tty; only root may, unless /dev/pts has this group.
        """
        ssh = ["ssh", "-tt", "login", "true"]
        done = subprocess.run(ssh, env=self.env, capture_output=True, stdin=subprocess.DEVNULL)
        lines = [line for line in self.log.read_text().splitlines() if "failed" in line]
        return None if done.returncode == 0 else "".join(lines[-1:])

    def log_ins(self):
        return self.log.read_text().count("Accepted publickey")

    def end(self):
        ssh = ["ssh", "-O", "exit", f"-oControlPath={self.sockets}/kit-%C", "login"]
        subprocess.run(ssh, env=self.env, capture_output=True, check=False)
        self.server.terminate()
        self.server.wait(timeout=20)
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.sockets)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def copy_kit(clone: Path) -> None:
    clone.mkdir()
    for name in ("jobs", "trainer", "slurm", "slurm_job_kit", "configs"):
        shutil.copytree(
            REPOSITORY / name,
            clone / name,
            symlinks=True,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    for name in ("pyproject.toml", ".gitignore"):
        shutil.copy(REPOSITORY / name, clone)
    (clone / ".venv").symlink_to(sys.prefix)
    subprocess.run(["git", "init", "-q", clone], check=True)


@pytest.fixture(scope="module")
def login(tmp_path_factory):
    node = LoginNode(tmp_path_factory.mktemp("login"))
    yield node
    node.end()


@pytest.fixture(scope="module")
def training(login):
    """(command, run): a submit from the laptop that trains on the login node."""
    (login.clone / "slow.py").write_text(SLOW)
    small = "slurm.nodes=1 launch.nproc_per_node=1 name=far log.every_steps=5"
    small += " train.model=slow:Slow train.epochs=100000 launch.standby_after_s=null"
    words = ("submit", "configs/cancer.yaml", f"--set={small}", "--cluster=local")
    process = login.start(*words, output=subprocess.DEVNULL)
    latest = login.clone / "runs/far/latest"
    wait_for((latest / "progress.json").exists, "no step is done", LIMIT_S)
    yield process, RunDir(latest.resolve())
    if process.poll() is None:
        process.kill()
    process.wait(timeout=LIMIT_S)


def test_a_submit_takes_what_lies_on_the_other_host(login, training):
    _, run = training
    assert run.path.is_relative_to(login.clone)
    assert (run.code / "configs/cancer.yaml").read_text() == run.spec_yaml.read_text()


def test_status_and_logs_are_those_of_the_other_host(login, training):
    _, run = training
    code, stdout, stderr = login.run("status", "far", "--json")
    assert (code, stderr) == (0, "")
    assert json.loads(stdout)[0]["run_dir"] == str(run.path)
    assert "step " in login.run("logs", run.run_id)[1]


def test_the_exit_code_and_the_error_are_those_of_the_command(login):
    code, stdout, stderr = login.run("logs", "it's none; $HOME")
    assert (code, stdout) == (2, "")
    assert '"it\'s none; $HOME"' in stderr
    code, _, stderr = login.run("submit", "configs/cancr.yaml")
    assert code == 2
    assert "configs/cancer.yaml?" in stderr and str(login.clone) in stderr


def test_make_takes_the_host(login, training):
    argv = ["make", f"PYTHON={sys.executable}", "READY=", "status", f"HOST=login:{login.clone}"]
    foreign = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "FLAGS", "WORKERS")
    env = {k: v for k, v in login.env.items() if k not in foreign} | {"HOST": "this-machine"}
    done = subprocess.run(argv, cwd=REPOSITORY, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert training[1].run_id in done.stdout
    exported = subprocess.run(
        argv[:-1], cwd=REPOSITORY, env=env, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert exported.returncode == 0 and training[1].run_id not in exported.stdout


def test_a_wrong_folder_or_host_is_named(login, tmp_path):
    code, _, stderr = login.run("status", folder=tmp_path / "none")
    assert code == 2 and f"login:{tmp_path}/none is no folder" in stderr
    code, _, stderr = login.run("status", folder=tmp_path)
    assert code == 2 and "has no kit" in stderr
    argv = [sys.executable, "-m", "jobs", "status", "--host", "closed:kit"]
    done = subprocess.run(argv, cwd=REPOSITORY, env=login.env, capture_output=True, text=True)
    assert done.returncode == 1 and "ssh to closed failed" in done.stderr


def test_another_version_of_the_kit_there_is_a_warning(login):
    project = login.clone / "pyproject.toml"
    text = project.read_text()
    project.write_text(text.replace('version = "', 'version = "99.', 1))
    code, _, stderr = login.run("status")
    project.write_text(text)
    assert code == 0 and "kit 99." in stderr


# SIGINT: the next test has it by a terminal.
@pytest.mark.parametrize(
    "number",
    [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM, signal.SIGKILL],
)
def test_the_command_there_ends_with_the_one_here(login, training, number):
    process = login.start("logs", "far", "-f")
    wait_for(lambda: select.select([process.stdout], [], [], 0)[0], "no log", LIMIT_S)
    followers = login.processes(str(training[1].rank_log(0))) or login.processes("logs", "far")
    assert followers
    process.send_signal(number)
    process.communicate(timeout=LIMIT_S)
    wait_for(lambda: not set(followers) & set(login.processes()), "it follows the log", LIMIT_S)


def test_on_a_terminal_ctrl_c_ends_it_and_the_connection_stays_for_the_next_command(
    login, training
):
    if reason := login.why_no_terminal():
        pytest.skip(f"this user's sshd cannot give a command a terminal: {reason}")
    before = login.log_ins()
    leader, follower = pty.openpty()
    argv = [sys.executable, "-m", "jobs", "logs", "far", "-f", "--host", f"login:{login.clone}"]
    process = subprocess.Popen(
        argv, cwd=REPOSITORY, env=login.env, stdin=follower, stdout=follower, stderr=follower
    )
    os.close(follower)
    shown = b""

    def has_steps():
        nonlocal shown
        if select.select([leader], [], [], 0.1)[0]:
            with contextlib.suppress(OSError):  # EIO: the process has closed the terminal
                shown += os.read(leader, 65536)
        assert b"step " in shown or process.poll() is None, shown
        return b"step " in shown

    wait_for(has_steps, "no log on the terminal", LIMIT_S)
    followers = login.processes("logs", "far") + login.processes(str(training[1].rank_log(0)))
    os.write(leader, b"\x03")
    # A full terminal would keep it from ending: go on reading.
    wait_for(lambda: has_steps() and process.poll() is not None, "ssh still runs", LIMIT_S)
    wait_for(lambda: not set(followers) & set(login.processes()), "it follows the log", LIMIT_S)
    os.close(leader)
    assert login.run("status")[0] == 0
    assert login.log_ins() == before + 1


def test_ctrl_c_stops_the_training_there_and_it_saves(login, training):
    process, run = training
    process.send_signal(signal.SIGINT)
    process.wait(timeout=LIMIT_S)
    wait_for(lambda: not login.processes(), "processes are left on the login node", LIMIT_S)
    assert run.attempts.exists() and list(run.checkpoints.glob("step-*"))
