"""What a script leaves running when it exits with 0: what works is waited for, all else is not."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm_job_kit.jobs import procfs
from slurm_job_kit.jobs.node import agent
from slurm_job_kit.jobs.procfs import children
from slurm_job_kit.jobs.rundir import write_json

REPOSITORY = Path(__file__).resolve().parents[3]
# In place of the wrapper, with shorter times: its file has the exit code, and what it left.
WRAPPER = """
import os, sys
from pathlib import Path
from slurm_job_kit.jobs.node import left_running
from slurm_job_kit.jobs.node.prctl import adopt_orphans
from slurm_job_kit.jobs.rundir import RunDir
left_running.SAMPLE_S, left_running.IDLE_WINDOWS = 0.05, 4
adopt_orphans(True)
script = os.fork()
if script == 0:
    os.execvp("bash", ["bash", "-c", sys.argv[2]])
code = left_running.wait_for(script)
if code == 0:
    code, left = left_running.outlasting(script, RunDir(Path(sys.argv[1])).attempt(1))
Path("end").write_text(f"{code} {left if code == 0 else ''}")
"""
# A process with torch loaded, to /proc: it works for a while, then waits without any work.
TORCH = """
import mmap, os, sys, time
with open("libtorch_cpu.so", "w+b") as file:
    file.write(b"x" * 4096); file.flush()
    loaded = mmap.mmap(file.fileno(), 4096)
working_s, idle_s, code = map(float, sys.argv[1:])
end = time.monotonic() + working_s
while time.monotonic() < end:
    pass
time.sleep(idle_s)
open("saved", "w").close()
os._exit(int(code))
"""


@pytest.fixture
def run(run):
    run.attempt(1).path.mkdir()
    (run.path / "train.py").write_text(TORCH)
    return run


@pytest.fixture
def wrapper(run):
    """Starts a wrapper whose script has this text, in bash; kills what it leaves."""
    started = []

    def begin(text):
        text = text.replace("TRAIN", f"{sys.executable} train.py")
        command = [sys.executable, "-c", WRAPPER, str(run.path), text]
        env = os.environ | {"PYTHONPATH": str(REPOSITORY), "KIT_TEST": str(run.path)}
        started.append(subprocess.Popen(command, cwd=run.path, env=env))
        return started[-1]

    yield begin
    mark = f"KIT_TEST={run.path}".encode()
    for pid in (int(name) for name in os.listdir("/proc") if name.isdecimal()):
        if mark in procfs.environment(pid):
            os.kill(pid, signal.SIGKILL)
    for process in started:
        process.wait()


@pytest.fixture
def end_of(run):
    """Waits for a wrapper; returns the exit code of its script, and what it left."""

    def end(process):
        assert process.wait(30) == 0
        return (run.path / "end").read_text().strip()

    return end


def has_saved(run):
    return (run.path / "saved").exists()


@pytest.mark.parametrize(
    ("script", "end"),
    [
        ("true", "0"),
        ("exit 3", "3"),
        ("nohup TRAIN 1 0 0 & exit 0", "0"),
        ("nohup setsid TRAIN 1 0 0 & exit 0", "0"),
        ("(sleep 0.1; TRAIN 1 0 0) & exit 0", "0"),
        ("nohup TRAIN 1 0 5 & exit 0", "5"),
        (f"nohup {sys.executable} -c 'import no_such_module' & exit 0", "1"),
        ("TRAIN 0.1 0.4 0 & exit 0", "0"),  # it waits for its peers
    ],
)
def test_what_a_script_left_working_is_waited_for_and_its_end_counts(
    run, wrapper, end_of, script, end
):
    assert end_of(wrapper(script)) == end
    assert has_saved(run) == ("TRAIN" in script)


@pytest.mark.parametrize(
    "script",
    [
        "sleep 1000 & exit 0",
        "nohup setsid sleep 1000 >/dev/null & exit 0",
        "while true; do sleep 0.5; done & exit 0",
        "TRAIN 0.1 1000 0 & exit 0",  # a fork of a training, which does nothing more
    ],
)
def test_what_does_not_work_keeps_no_run_alive(run, wrapper, end_of, script):
    began = time.monotonic()
    code, _, left = end_of(wrapper(script)).partition(" ")
    assert code == "0" and left.split()[0] in ("sleep", "bash", sys.executable)
    assert time.monotonic() - began < 30


def test_after_the_marker_of_the_end_nothing_is_waited_for(run, wrapper, end_of):
    write_json(run.attempt(1).outcome, {"status": "completed"})
    assert end_of(wrapper("TRAIN 1000 0 0 & exit 0")).startswith("0 ")
    assert not has_saved(run)


def test_at_a_stop_only_a_training_that_works_is_waited_for(run, wrapper, end_of):
    run.attempt(1).stop_requested.touch()
    assert end_of(wrapper("sleep 1000 & TRAIN 1 0 0 & sleep 0.5; exit 0")).startswith("0 sleep")
    assert has_saved(run)


def test_an_orphan_that_ends_while_the_script_runs_is_not_its_end(run, wrapper, end_of):
    assert end_of(wrapper("(sh -c 'sleep 0.1; exit 3' &); sleep 0.5; exit 0")) == "0"


def test_a_stop_reaches_the_script_alone_and_after_its_end_what_it_left(run, wrapper, end_of):
    """As long as the script runs, its helpers must not be ended by a stop."""
    process = wrapper("(TRAIN 1000 0 0 &); until [ -e go ]; do sleep 0.05; done")
    deadline = time.monotonic() + 20
    while len(children(process.pid)) < 2 or not (run.path / "libtorch_cpu.so").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    script, training = sorted(children(process.pid))
    assert agent.scripts_of([process.pid]) == [script]
    (run.path / "go").touch()
    while agent.scripts_of([process.pid]) != [training]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(training, signal.SIGUSR1)
    assert end_of(process) == "-10"


def test_a_helper_that_has_just_gone_is_not_taken_for_the_script(monkeypatch):
    """Its wrapper removes it between two looks; then the script alone is to be asked."""
    script, gone = os.getpid(), 2**22 + 1
    with subprocess.Popen(["sleep", "60"]) as helper:
        monkeypatch.setattr(agent, "children", lambda wrapper: [script, helper.pid, gone])
        scripts = agent.scripts_of([1])
        helper.kill()
    assert scripts == [script]


def test_a_wrapper_without_a_script_is_no_error():
    assert agent.scripts_of([2**22 + 1]) == []  # above the highest pid
