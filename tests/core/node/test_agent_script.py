"""slurm/agent.sh: sources the setup lines on a node, then becomes the agent inside of a prefix."""

import ast
import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from slurm_job_kit.jobs.base import installation
from slurm_job_kit.jobs.base.stop_signals import end_at_stop_signals
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.node.__main__ import refuse_old_python
from slurm_job_kit.jobs.runs.freeze import setup_script
from tests.core.waiting import wait_for

SCRIPT = Path(__file__).resolve().parents[3] / "slurm/agent.sh"
HOST = socket.gethostname()
# In place of the interpreter: prints its arguments, its directory and what the setup lines set.
PYTHON = """#!/bin/sh
echo "agent: $*"; echo "cwd: $PWD"; echo "PYTHONPATH=$PYTHONPATH"; echo "A=$A rank=$KIT_NODE_RANK"
"""


class Node:
    """One node, number 8, of attempt 1 of a run."""

    def __init__(self, path):
        self.run_dir = RunDir(path / "a run")
        self.attempt = self.run_dir.attempt(1)
        self.attempt.path.mkdir(parents=True)
        self.run_dir.code.mkdir()
        self.run_dir.kit.symlink_to("code")
        self.run_dir.spec.write_text("{}")
        self.python = path / "python"
        self.python.write_text(PYTHON)
        self.python.chmod(0o755)
        self.setup_log = self.attempt.path / "setup-00008.log"
        self.interpreter = "/the host's/python"
        self.prefix: list[str] = []

    def argv(self, *lines):
        self.run_dir.setup.write_text(setup_script(str(self.interpreter), lines))
        arguments = [self.run_dir.path, "1", *self.prefix, self.python]
        return ["bash", SCRIPT, *map(str, arguments)]

    def run(self, *lines, before=(), **variables):
        # Slurm gives a job the variables of the host that submitted it.
        env = os.environ | {"SLURM_NODEID": "8", "HOSTNAME": "login"} | variables
        argv = [*before, *self.argv(*lines)]
        return subprocess.run(argv, env=env, capture_output=True, text=True, cwd="/", timeout=100)

    @property
    def reason(self):
        path = self.attempt.agent_error(8)
        return path.read_text() if path.exists() else None


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


def test_the_agent_gets_its_arguments_in_the_frozen_code(node):
    done = node.run()
    path = node.run_dir.path
    assert done.stdout.splitlines()[:2] == [
        f"agent: -m slurm_job_kit.jobs.node {path} 1 --node-rank=8",
        f"cwd: {path}/code",
    ]
    assert (done.returncode, done.stderr, node.reason) == (0, "", None)
    assert not node.setup_log.exists()


def test_what_the_setup_lines_export_reaches_the_agent_and_their_output_the_log(node):
    done = node.run("export A=1", "echo out; echo err >&2", "cd /tmp")
    assert "A=1" in done.stdout and f"cwd: {node.run_dir.code}" in done.stdout
    assert "out" in done.stdout and "err" in done.stdout
    assert node.setup_log.read_text() == "out\nerr\n"


def test_the_agent_gets_the_variables_of_the_setup_lines_but_no_command_does(node, monkeypatch):
    """Each user of the node can read the arguments of all processes."""
    folder = node.python.parent / "bin"
    folder.mkdir()
    (folder / "env").write_text(f'#!/bin/sh\necho "$@" >{folder}/arguments\n/usr/bin/env "$@"\n')
    (folder / "env").chmod(0o755)
    (folder / "sh").symlink_to("/bin/bash")  # as on RHEL; dash passes variables of a shell only
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    monkeypatch.setenv("GONE", "x")
    monkeypatch.setenv("a.b", "no name of a shell")
    lines = ("export TOKEN='a secret\n\"$HOME\"'", "readonly A=1; export A", "unset GONE")
    node.python.write_text("#!/bin/bash\n/usr/bin/env -0; echo; bash -c say")
    unreadable = ("shopt -s extglob", "z() { case $1 in @(a|b)) :;; esac; }; export -f z")
    done = node.run(*lines, "say() { echo said; }; export -f say", *unreadable)
    seen = {*done.stdout.split("\0")}
    assert {'TOKEN=a secret\n"$HOME"', "A=1", "a.b=no name of a shell", "\nsaid\n"} <= seen
    assert not any(each.startswith(("GONE=", "kit_")) for each in seen)
    assert not (folder / "arguments").exists() and done.stderr == ""


def test_a_search_path_of_the_setup_lines_is_kept_behind_the_frozen_code(node):
    code = f"{node.run_dir.code}:{node.run_dir.kit}"
    assert f"PYTHONPATH={code}:/my/packages\n" in node.run("export PYTHONPATH=/my/packages").stdout
    both = f"/my/packages:{code}"
    assert f"PYTHONPATH={code}:{both}\n" in node.run(f"export PYTHONPATH='{both}'").stdout


# In place of the interpreter: prints what it inherited.
INHERITED = """#!/bin/sh
env; echo "files $(ulimit -S -n) of $(ulimit -H -n)"
"""
HOSTILE = {
    "OMP_PROC_BIND": "true",
    "OMP_PLACES": "cores",
    "KMP_AFFINITY": "compact",
    "GOMP_CPU_AFFINITY": "0",
    "OMP_THREAD_LIMIT": "1",
    "MKL_NUM_THREADS": "16",
    "PYTHONINSPECT": "1",
    "PYTHONHASHSEED": "7",
    "PYTHONHOME": "/no/such",
    "CDPATH": "/",
    "POSIXLY_CORRECT": "1",
}


def test_what_binds_or_breaks_the_ranks_is_inherited_from_the_setup_lines_only(node):
    node.python.write_text(INHERITED)
    limit = ["bash", "-c", 'ulimit -S -n 64; exec "$@"', "bash"]
    variables = HOSTILE | {"MKL_INTERFACE_LAYER": "GNU"}
    done = node.run("export OMP_PLACES=sockets", before=limit, **variables)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    seen = {line.partition("=")[0] for line in lines} & {*variables}
    assert seen == {"OMP_PLACES", "MKL_INTERFACE_LAYER"} and "OMP_PLACES=sockets" in lines
    (files,) = [line for line in lines if line.startswith("files ")]
    assert files.split()[1] == files.split()[3] != "64"


def test_setup_runs_outside_of_the_command_prefix(node):
    """As `module load apptainer` must: the prefix itself is on the PATH that setup sets."""
    contained = node.run_dir.path / "contained"
    contained.write_text('#!/bin/sh\nexport A="$A, inside"\nexec "$@"\n')
    contained.chmod(0o755)
    node.prefix = ["contained"]
    done = node.run("export A=outside", f"export PATH='{contained.parent}':$PATH")
    assert "A=outside, inside" in done.stdout


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["true", "ls /no/such", "echo never"], "exit code 2: ls: "),
        (["f() { true; return 3; }", "echo x", "f"], "exit code 3: x"),
        (["true || true", "exit 0"], "exit code 0"),
        (["[ -d /no/such ] || return 5"], "exit code 5"),
        (["if then"], "exit code 2: "),
    ],
)
def test_a_failed_setup_line_is_the_reason_with_node_output_and_exit_code(node, lines, reason):
    done = node.run(*lines)
    assert node.reason is not None and node.reason.startswith(f"{HOST}: setup: {reason}")
    assert node.reason.count("\n") == 1 and node.reason.rstrip() in done.stderr
    assert (done.returncode, "agent: " in done.stdout) == (1, False)
    assert "never" not in done.stdout


@pytest.mark.parametrize(
    "line",
    [
        "echo $NO_SUCH_VARIABLE",  # conda and environment modules fail under -u
        "f() { false; true; }; f",  # and their functions under -e
        "[ -d /no/such ] && echo; true",
        "(exit 3) || true",
        "yes | head -n 1",  # with pipefail the exit code would be 141
        "trap 'echo bye' EXIT",
    ],
)
def test_what_is_no_failure_of_a_line(node, line):
    assert node.run(line, "export A=1").returncode == 0


def test_a_setup_has_ended_well_whatever_status_bash_has_of_it(node, tmp_path, monkeypatch):
    """`wait` of bash 5.2 sometimes returns -1; here it does not exist."""
    (tmp_path / "no_wait").write_text("enable -n wait\n")
    monkeypatch.setenv("BASH_ENV", str(tmp_path / "no_wait"))
    assert "A=1" in node.run("export A=1").stdout
    assert "exit code 3" in node.run("exit 3").stderr


@pytest.fixture
def in_setup(node):
    """A shell of the agent whose setup has begun."""
    with ExitStack() as shells:

        def start(*lines):
            shell = subprocess.Popen(
                node.argv(*lines),
                env=os.environ | {"KIT_NODE_RANK": "8"},
                stdout=subprocess.PIPE,
                start_new_session=True,
                # As srun does; bash cannot reset what `make test &` ignores.
                preexec_fn=end_at_stop_signals,
            )
            shells.enter_context(shell)
            log = node.setup_log
            wait_for(lambda: log.exists() and log.read_text() == "begun\n")
            return shell

        yield start


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_stop_signal_ends_the_setup_at_once_and_is_no_failure_of_it(node, in_setup, number):
    shell = in_setup("[ -d /no/such ] && true", "echo begun; sleep 1000")
    shell.send_signal(number)
    assert shell.wait(100) == -number
    os.killpg(shell.pid, signal.SIGKILL)  # sleep, which Slurm kills with the srun step
    assert node.reason is None


def test_a_stop_signal_that_bash_would_lose_ends_the_agent_after_the_setup(node, in_setup):
    shell = in_setup("sh -c 'echo begun; sleep 1'")
    shell.send_signal(signal.SIGQUIT)
    assert shell.wait(100) == 128 + signal.SIGQUIT
    assert b"agent:" not in shell.stdout.read()
    assert node.reason is None


def test_a_server_that_a_setup_line_starts_outlives_it_and_holds_nothing_up(node):
    done = node.run("sleep 1000 & echo $!", "export A=1")
    assert "A=1" in done.stdout
    os.kill(int(node.setup_log.read_text()), signal.SIGKILL)


def test_a_command_that_a_stop_signal_ended_is_no_failure_of_the_setup(node):
    """Some sites send the signal to the whole process tree."""
    done = node.run("sh -c 'kill -TERM $$'")
    assert (done.returncode, node.reason) == (128 + signal.SIGTERM, None)


def test_a_part_of_the_environment_is_not_taken_for_the_whole(node):
    """The kernel kills the setup shell for want of memory while it prints its environment."""
    done = node.run("export A=1", 'export() { builtin export "$@"; kill -KILL "$BASHPID"; }')
    assert (done.returncode, node.reason) == (1, f"{HOST}: setup: exit code 137\n")
    assert "agent:" not in done.stdout


NO_PREFIX = "setup: exit code 127: launch.command_prefix: nosuch is not on PATH"
NO_PYTHON = "launch.python: no interpreter /no/such/python here"


@pytest.mark.parametrize(
    ("prefix", "python", "reason"),
    [(["nosuch", "--nv"], None, NO_PREFIX), (["env"], "/no/such/python", NO_PYTHON)],
)
def test_a_missing_program_is_named_with_its_node(node, prefix, python, reason):
    node.prefix = prefix
    node.python = python or node.python
    done = node.run()
    assert (done.returncode, node.reason) == (1, f"{HOST}: {reason}\n")
    assert "hint: " in done.stderr


def test_an_interpreter_that_is_too_old_is_named_with_its_node(node, capsys):
    argv = [str(node.run_dir.path), "1", "--node-rank=8"]
    with pytest.raises(SystemExit) as ended:
        refuse_old_python(argv, (3, 6, 8))
    expected = f"{HOST}: launch.python: {sys.executable} is Python 3.6.8, and agents"
    assert node.reason is not None and node.reason.startswith(expected)
    assert node.reason.rstrip() in str(ended.value) and "hint: " in str(ended.value)
    refuse_old_python(argv, sys.version_info[:3])


def test_the_check_of_the_version_needs_no_module_of_the_kit():
    """Python 3.6, the python3 of many sites, must be able to read what comes before the check."""
    names = ("jobs/__init__.py", "jobs/node/__init__.py", "jobs/node/__main__.py")
    ours = (installation.HOME / each for each in names)
    for path in (installation.PACKAGE / "__init__.py", *ours):
        text = path.read_text()
        assert "from __future__" not in text
        ast.parse(text, feature_version=(3, 6))
        head = text.partition("def main")[0]
        assert "from ." not in head
