"""The command shell: where a rank is, and what runs beside it."""

import os
import shutil
import signal
import socket
import subprocess
import sys

import pytest

from slurm_job_kit.jobs import procfs
from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.commands import shell
from slurm_job_kit.jobs.rundir import Timeline, write_json
from slurm_job_kit.jobs.slurm import client
from tests.unit import run_files
from tests.unit.run_files import REPOSITORY, make_code, make_run

HOST = socket.gethostname()


@pytest.fixture
def rank():
    """A process that stands for a rank."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def local(here, rank, monkeypatch):
    """A run on this machine whose only rank is that process, in attempt 2."""
    run = make_run(here)
    make_code(here, run)
    run.setup.write_text("export KIT_PYTHON=python\nexport BESIDE=yes\nfalse\n")
    owner = {"job_id": f"local-{HOST}-{rank.pid}", "host": HOST, "pid": rank.pid}
    began = procfs.start_of(rank.pid)
    write_json(run.owner, run_files.claim(**owner, pid_start=began, attempt=2))
    for number in (0, 1):
        spawn(run, number, HOST, 1, attempt=1)
    spawn(run, 0, HOST, rank.pid)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    return run


def spawn(run, rank, host, pid, attempt=2):
    Timeline(run, f"rank-{rank:05d}", attempt).event("spawn", host=host, pid=pid)


def kit(*words):
    """Run the kit in a process of its own, because it becomes another command."""
    env = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "slurm_job_kit.jobs", *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_a_command_runs_in_the_environment_of_the_ranks(local):
    done = kit("shell", "tiny", "--", "sh", "-c", 'echo "$PWD|$BESIDE|$PYTHONPATH|$1"', "x", "a b")
    assert done.stdout == f"{local.code}|yes|{local.code}:{REPOSITORY}|a b\n", done.stderr


def test_without_a_command_a_shell_reads_the_commands(local):
    env = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "slurm_job_kit.jobs", "shell", "tiny"]
    done = subprocess.run(
        command, env=env, input="echo $BESIDE; exit 3", capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.returncode) == ("yes\n", 3)


def test_the_exit_code_is_that_of_the_command(local):
    assert kit("shell", "tiny", "--rank", "0", "--", "sh", "-c", "exit 5").returncode == 5


def test_the_stack_of_a_rank(local, capfd):
    if not shutil.which("py-spy", path=os.path.dirname(sys.executable)):
        pytest.skip("py-spy is not installed")
    assert main(["shell", "tiny", "--stack"]) == 0
    assert "<module> (<string>:1)" in capfd.readouterr().out


def test_a_refusal_of_ptrace_is_explained(local, monkeypatch, tmp_path, capfd):
    refusal = "#!/bin/sh\necho 'Error: Permission Denied: Try again with sudo' >&2\nexit 1\n"
    (tmp_path / "py-spy").write_text(refusal)
    (tmp_path / "py-spy").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert main(["shell", "tiny", "--stack"]) == 1
    assert "ptrace" in capfd.readouterr().err


def test_a_host_without_py_spy_is_an_error(local, monkeypatch, tmp_path, capfd):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert main(["shell", "tiny", "--stack"]) == 2
    assert "pip install py-spy" in capfd.readouterr().err


def test_a_rank_that_has_ended_is_an_error(local, rank, capfd):
    spawn(local, 0, HOST, 2**22 + 1)
    assert main(["shell", "tiny", "--stack"]) == 2
    assert "has ended" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["tiny", "--stack", "--rank", "1"], "has no rank 1 in attempt 2: 1 rank of it started"),
        (["tiny", "--rank", "4"], "has no rank 4 in attempt 2: 1 rank of it started"),
        (["tiny", "--stack", "--", "ls"], "takes no command"),
        (["tinny"], "did you mean tiny"),
    ],
)
def test_bad_input_is_refused(local, words, text, capfd):
    assert main(["shell", *words]) == 2
    assert text in capfd.readouterr().err


def test_a_run_that_does_not_run_is_refused(local, rank, capfd):
    rank.send_signal(signal.SIGKILL)
    rank.wait()
    assert main(["shell", "tiny", "--stack"]) == 2
    local.owner.unlink()
    assert main(["shell", "tiny", "--stack"]) == 2
    assert capfd.readouterr().err.count("does not run now") == 2


def test_a_local_run_on_another_host_is_refused(local, capfd):
    owner = run_files.claim(job_id="local-other-1", host="other", attempt=2)
    write_json(local.owner, owner)
    assert main(["shell", "tiny", "--stack"]) == 2
    assert "runs on other" in capfd.readouterr().err


@pytest.fixture
def on_slurm(slurm, here):
    """A run as job 7 on the nodes a and b, whose hosts have longer names."""
    run = make_run(here)
    write_json(run.owner, run_files.claim(attempt=2))
    run_files.opened(run, 2)
    for number, node in enumerate(("a", "b")):
        write_json(run.attempt(2).agent(number), {"host": f"{node}-host.example.org"})
    spawn(run, 0, "b-host.example.org", 10)
    return run


def test_on_slurm_it_is_a_step_on_the_node_of_the_rank(on_slurm, slurm):
    slurm.set_state("7", "RUNNING")
    place = shell.find_place(on_slurm, 0)
    assert (place.job_id, place.node, place.pid) == ("7", "b", 10)
    argv = shell.argv_beside(on_slurm, place, ["ls"])
    assert argv[0] == "srun" and {"--jobid=7", "--nodelist=b", "--overlap"} <= set(argv)
    # Where memory is a resource the ranks have all of it; the user may have SLURM_EXPORT_ENV=NONE.
    assert {"--mem=0", "--export=ALL"} <= set(argv)


@pytest.mark.parametrize("state", ["PENDING", "COMPLETING", "COMPLETED"])
def test_a_job_that_does_not_run_is_refused(on_slurm, slurm, state, capfd):
    slurm.set_state("7", state)
    assert main(["shell", "tiny", "--stack"]) == 2
    assert "does not run now" in capfd.readouterr().err


def test_without_an_answer_of_slurm_nothing_is_claimed(on_slurm, slurm, capfd):
    slurm.answer("squeue", error="Unable to contact slurm controller", status=1)
    assert main(["shell", "tiny", "--stack"]) == 1
    assert "does not answer" in capfd.readouterr().err


def test_srun_gets_the_number_of_an_arrays_task(slurm):
    slurm.answer("scontrol", "JobId=15 ArrayJobId=12 ArrayTaskId=3\n")
    assert (client.plain_job_id("12_3"), client.plain_job_id("12")) == ("15", "12")
