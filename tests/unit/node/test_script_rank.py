"""The wrapper of a user's script: where the script starts, what it finds, why it failed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm_job_kit.jobs import records
from slurm_job_kit.jobs.node.torchrun import rank_command
from slurm_job_kit.jobs.procfs import children
from slurm_job_kit.jobs.records.nodes import RankError
from slurm_job_kit.jobs.rundir import RunDir, read_jsonl
from slurm_job_kit.jobs.spec import Launch, Spec

REPOSITORY = Path(__file__).resolve().parents[3]
# In place of torchrun: it ignores the stop signals, and exits as its rank does.
TORCHRUN = """
import signal, subprocess, sys
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, signal.SIG_IGN)
rank = subprocess.Popen([sys.executable, "-m", "slurm_job_kit.jobs.node.rank", *sys.argv[1:]])
sys.exit(rank.wait())
"""
REPORT = """
import importlib.util, os, sys
import helper
print("cwd", os.getcwd())
print("helper", helper.__file__)
print("top", importlib.util.find_spec("at_top") is not None)
open("made.txt", "w").write("x")
"""


@pytest.fixture
def run(tmp_path):
    """A run with frozen code: a script and a package."""
    run = RunDir(tmp_path)
    for folder in (run.attempt(1).path, run.timeline("x").parent, run.rank_log(0).parent):
        folder.mkdir(parents=True)
    (run.code / "mine").mkdir(parents=True)
    (run.code / "at_top").mkdir()
    (run.code / "at_top/__init__.py").touch()
    (run.code / "mine/helper.py").write_text("")
    (run.code / "helper.py").write_text("")
    return run


@pytest.fixture
def start(run):
    """Starts the text as launch.script or, if `is_module`, as launch.module, under a torchrun."""
    started = []

    def begin(text, is_module=False, search_path=""):
        (run.code / "mine/run.py").write_text(text)
        launch = Launch(module="mine.run") if is_module else Launch(script="mine/run.py")
        command = [str(run.path), *rank_command(Spec(launch=launch), run)]
        env = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(run.code), str(REPOSITORY), search_path]),
            "KIT_AGENT_PID": str(os.getpid()),
            "KIT_ATTEMPT": "1",
            "RANK": "1",
            "WORLD_SIZE": "2",
            "KIT_WORK_DIR": str(run.work),
        }
        # Not in REPOSITORY: `python -m` puts the working directory on the search path.
        argv = [sys.executable, "-c", TORCHRUN, *command]
        started.append(subprocess.Popen(argv, env=env, cwd="/"))
        return started[0]

    yield begin
    for process in started:
        process.kill()
        process.wait()


def log(run):
    return run.attempt(1).rank_log(1).read_text()


def error(run):
    return records.read(RankError, run.attempt(1).rank_error(1))


@pytest.mark.parametrize(
    ("is_module", "helper"), [(False, "code/mine/helper.py"), (True, "code/helper.py")]
)
def test_a_script_starts_in_its_working_directory_and_imports_frozen_code(
    run, start, is_module, helper
):
    assert start(REPORT, is_module).wait(30) == 0
    # A script does not find what lies at the top of the frozen code: the packages of the kit.
    assert f"cwd {run.work}\nhelper {run.path / helper}\ntop {is_module}\n" in log(run)
    assert os.listdir(run.work) == ["made.txt"]
    assert error(run) is None
    assert not (run.code / "made.txt").exists()


def test_a_script_finds_the_top_of_the_frozen_code_if_the_user_asks_for_it(run, start):
    text = "import at_top; print(at_top.__file__)"
    assert start(text, search_path=f"{run.code}/.").wait(30) == 0
    assert f"{run.code}/at_top/__init__.py\n" in log(run)


@pytest.mark.parametrize(
    ("text", "exit_code", "message"),
    [
        ("import sys; sys.exit(3)", 3, "exited with code 3"),
        ("import os; os.kill(os.getpid(), 11)", 128 + 11, "was killed by SIGSEGV"),
        ("raise ValueError('bad')", 1, "ValueError: bad"),
        ("import nowhere", 1, "ModuleNotFoundError: No module named 'nowhere'"),
        ("x =", 1, "SyntaxError: invalid syntax"),
        ("import sys; sys.exit('no data')", 1, "exited with code 1"),
    ],
)
def test_the_reason_of_a_failure_is_recorded(run, start, text, exit_code, message):
    assert start(text).wait(30) == exit_code
    record = error(run)
    assert record is not None
    assert (record.rank, record.error) == (1, message)
    assert ("File" in record.traceback) == ("Error" in message)


def wait_for(condition, limit_s=15):
    deadline = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def test_a_signal_of_the_agent_reaches_the_script_and_the_wrapper_stays(run, start):
    text = (
        "import signal, sys\nsignal.signal(10, lambda *_: sys.exit(4))\nprint('there', flush=True)"
    )
    torchrun = start(text + "\nsignal.pause()")
    wait_for(lambda: run.attempt(1).rank_log(1).exists() and "there" in log(run))
    (wrapper,) = children(torchrun.pid)
    (rank,) = children(wrapper)
    (spawned,) = read_jsonl(run.timeline("rank-00001"))
    assert spawned["pid"] == rank
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        os.kill(wrapper, number)
    os.kill(rank, signal.SIGUSR1)
    assert torchrun.wait(15) == 4
    record = error(run)
    assert record is not None and record.error == "exited with code 4"


def test_a_script_dies_with_the_torchrun_that_is_killed(run, start):
    torchrun = start("import signal; print('there', flush=True); signal.pause()")
    wait_for(lambda: run.attempt(1).rank_log(1).exists() and "there" in log(run))
    (wrapper,) = children(torchrun.pid)
    (rank,) = children(wrapper)
    torchrun.kill()
    torchrun.wait()
    wait_for(lambda: not Path(f"/proc/{rank}/exe").exists())  # a zombie has none
