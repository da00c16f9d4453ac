"""The process that imports torch for torchrun, during the rendezvous or the attempt before."""

import io
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from slurm_job_kit.jobs.node import oom, silent_end, standby
from slurm_job_kit.jobs.node.agent import prepare_torchrun
from slurm_job_kit.jobs.node.standby import SpareTest, WaitingTorchrun
from slurm_job_kit.jobs.node.stop_signals import STOP_SIGNALS
from slurm_job_kit.jobs.node.torchrun import preload_command, variables_of_spec
from slurm_job_kit.jobs.procfs import children
from slurm_job_kit.jobs.rundir import RunDir
from slurm_job_kit.jobs.spec import Launch, Slurm, Spec, Train

pytestmark = pytest.mark.long  # processes import torch

REPOSITORY = Path(__file__).resolve().parents[3]
# A rank: what it finds at its first line. Nothing may have asked for a GPU before the fork: a fork
# cannot use CUDA after that.
RANK = """
import gc, os, sys, threading
import torch
names = [name for name in ("slurm_job_kit.trainer.run", "torch._dynamo") if name in sys.modules]
# A module that another thread is importing is there, too.
loaded = [name for name in names if not getattr(sys.modules[name].__spec__, "_initializing", 0)]
print("loaded", *loaded)
print("threads", *sorted(each.name for each in threading.enumerate()))
print("cuda", torch.cuda.is_initialized(), sys.asked)
print("frozen", gc.get_freeze_count() > 10_000)
print("variables", os.environ["RANK"], os.environ["COLOUR"])
unneeded = ("sklearn", "scipy", "pandas", "yaml", "submitit", "torchvision")
print("unneeded", *(name for name in (*unneeded, "tensorboard", "wandb") if name in sys.modules))
print("modules", len(sys.modules))
print("opened", sys.opened)
"""
# Python imports it at its start.
ASKS = """
import os, sys
sys.asked = "no"
sys.opened = 0
def count(event, arguments):
    sys.opened += event == "open"
sys.addaudithook(count)
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "torch.distributed.run":  # torch is imported by now
            sys.meta_path.remove(self)
            import torch
            torch.cuda.is_available = is_available
            for function in ("_cuda_getDeviceCount", "_cuda_init"):  # of a torch for CUDA
                if hasattr(torch._C, function):
                    setattr(torch._C, function, asked)
def is_available():
    return asked() if os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK") != "1" else False
def asked(*arguments):
    sys.asked = "yes"
    return 0
sys.meta_path.insert(0, Finder())
"""
# On a cold shared file system they decide how long a start takes. A tenth more than with
# torch 2.13 for CUDA, which imports triton, too: 2231 and 2407. For the CPU: 2105 and 2254.
MOST_MODULES = 2450
MOST_OPENED = 2650
TORCHRUN = [
    "torch.distributed.run",
    *("--nnodes=1", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"),
    *("--start-method=fork", "--run-path", "--"),
]


@pytest.fixture
def rank(tmp_path, monkeypatch):
    """The path of RANK; the processes of this test see ASKS."""
    (tmp_path / "sitecustomize.py").write_text(ASKS)
    (tmp_path / "rank.py").write_text(RANK)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{REPOSITORY}")
    for name, value in variables_of_spec(Spec()).items():
        monkeypatch.setenv(name, value)
    return tmp_path / "rank.py"


def assert_ready(printed):
    lines = printed.splitlines()
    assert "loaded slurm_job_kit.trainer.run torch._dynamo" in lines, printed
    assert "cuda False no" in lines
    assert "frozen True" in lines
    assert "variables 0 blue" in lines
    # The thread that imports has ended. Threads of the parent do not exist in the rank.
    assert "threads MainThread" in lines
    assert "unneeded" in lines
    counts = {line.split()[0]: int(line.split()[-1]) for line in lines[-2:]}
    assert counts["modules"] <= MOST_MODULES, counts
    assert counts["opened"] <= MOST_OPENED, counts


def test_a_rank_is_forked_with_torch_and_trainer_imported(rank, monkeypatch):
    monkeypatch.setenv("COLOUR", "blue")
    modules = "slurm_job_kit.trainer.run,torch._dynamo"
    command = [sys.executable, "-u", "-m", "slurm_job_kit.jobs.node.preload", modules]
    done = subprocess.run(
        [*command, *TORCHRUN, rank], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert_ready(done.stdout)


def test_a_standby_becomes_torchrun(rank, tmp_path):
    waiting = WaitingTorchrun(Spec(), lambda: None)
    log = tmp_path / "torchrun.log"
    command = [*preload_command(Spec()), *TORCHRUN, str(rank)]
    process = waiting.start(command, os.environ | {"COLOUR": "blue"}, log)
    assert process is not None and process.wait(100) == 0, log.read_text()
    assert_ready(log.read_text())


def test_a_standby_that_was_killed_is_not_used(rank, tmp_path):
    waiting = WaitingTorchrun(Spec(), lambda: None)
    assert waiting.process is not None
    waiting.process.kill()
    waiting.process.communicate()
    assert waiting.start(["torchrun"], dict(os.environ), tmp_path / "log") is None


def test_a_standby_ends_when_its_agent_has_ended(rank):
    waiting = WaitingTorchrun(Spec(train=Train(compile=True)), lambda: None)
    assert waiting.process is not None
    waiting.process.communicate(timeout=100)  # closes the pipe
    assert waiting.process.returncode == 0


def test_a_standby_needs_memory(monkeypatch, tmp_path):
    monkeypatch.setattr(oom, "free_bytes", lambda: standby.NEEDED_BYTES - 1)
    waiting = WaitingTorchrun(Spec(), lambda: pytest.fail("a process is started"))
    assert waiting.start(["torchrun"], {}, tmp_path / "log") is None


def test_an_agent_never_waits_for_a_standby_that_is_stopped(rank, tmp_path):
    """Its environment may be larger than the buffer of a pipe."""
    waiting = WaitingTorchrun(Spec(), lambda: None)
    assert waiting.process is not None
    waiting.process.send_signal(signal.SIGSTOP)
    env = os.environ | {"LARGE": "x" * 2**20}
    process = waiting.start([*preload_command(Spec()), "torchrun"], env, tmp_path / "log")
    assert process is waiting.process
    process.kill()
    process.wait()


def agent_of(run, after_s, setup, python):
    """The first process of an agent that waits, as srun starts it; `python` is a shell's text."""
    for folder in ("code", "kit", "standby", "attempt-2"):
        (run / folder).mkdir()
    (run / "standby/after_s").write_text(f"{after_s}\n")
    (run / "setup.sh").write_text(f"export KIT_PYTHON=x\n{setup}")
    (run / "python").write_text(f"#!/bin/sh\n{python}")
    (run / "python").chmod(0o755)
    return subprocess.Popen(
        ["bash", "slurm/agent.sh", run, "standby", "-", run / "python"],
        cwd=REPOSITORY,
        env=os.environ | {"KIT_NODE_RANK": "3"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


@pytest.mark.parametrize("told", [b"2 10.0.0.1:15000\n", b""], ids=["a line", "the end"])
def test_the_agent_of_the_next_attempt_waits_in_the_shell_first(tmp_path, told):
    """Before launch.standby_after_s the setup lines and Python are not started."""
    agent = agent_of(tmp_path, 60, "", 'echo "agent: $*"\n')
    time.sleep(0.2)  # there is nothing to see while it waits
    assert agent.poll() is None
    printed, _ = agent.communicate(told, timeout=20)
    assert agent.returncode == 0
    options = "--rdzv-endpoint=10.0.0.1:15000 --node-rank=3"
    expected = f"agent: -m slurm_job_kit.jobs.node {tmp_path} 2 {options}\n" if told else ""
    assert printed.decode() == expected


def test_setup_lines_do_not_read_the_line_of_the_next_attempt(tmp_path):
    agent = agent_of(tmp_path, 1, "cat\n", "read -r line\necho agent got $line\n")
    log = tmp_path / "standby/setup-00003.log"
    deadline = time.monotonic() + 20
    while not log.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    printed, _ = agent.communicate(b"2 10.0.0.1:15000\n", timeout=20)
    assert printed.decode() == "agent got 2 10.0.0.1:15000\n"


def test_a_forked_rank_has_the_signals_of_a_new_process():
    """An ignored stop stays ignored, as the agent wants it."""
    text = """
import signal
from slurm_job_kit.jobs.node.forked_rank import reset_signals
signal.signal(signal.SIGHUP, lambda *_: None)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
reset_signals()
print(*(signal.getsignal(number).name for number in (signal.SIGHUP, signal.SIGTERM)))
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["SIG_DFL", "SIG_IGN"]


AS_A_FORK = """
import multiprocessing, os, sys
from slurm_job_kit.jobs.node.forked_rank import leave_multiprocessing, replace_exit
def rank():
    exit_now = os._exit
    replace_exit(exit_now)
    leave_multiprocessing()
    {lines}
    sys.stdout.flush()
    exit_now(0)
fork = multiprocessing.get_context("fork").Process(target=rank)
fork.start()
fork.join()
print("exit", fork.exitcode)
"""


@pytest.mark.parametrize(
    ("lines", "printed"),
    [
        ("multiprocessing.set_start_method('spawn')", "exit 0"),
        ("print(multiprocessing.current_process().name)", "MainProcess exit 0"),
        ("print(multiprocessing.parent_process())", "None exit 0"),
        ("os._exit(0)", "exit 1"),
        ("os._exit(3)", "exit 3"),
        ("pid = os.fork() or os._exit(0); print(os.waitpid(pid, 0)[1])", "0 exit 0"),
    ],
)
def test_the_users_code_finds_a_process_as_any_other_in_a_forked_rank(lines, printed):
    """Only its exit with 0 is an error: torchrun would wait for the rank's return."""
    text = AS_A_FORK.format(lines=lines)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert " ".join(done.stdout.split()) == printed


@pytest.mark.parametrize(
    ("spec", "seconds"),
    [
        (Spec(), 20),
        (Spec(launch=Launch(standby_after_s=None)), None),
        (Spec(launch=Launch(script="train.py")), None),
        (Spec(setup=["module load cuda"]), None),
        (Spec(setup=["module load cuda"], launch=Launch(standby_after_s=5)), 5),
        (Spec(launch=Launch(command_prefix=["nice"])), None),
        (Spec(slurm=Slurm(srun_args=["--container-image=x"])), None),
    ],
)
def test_lines_of_the_user_run_beside_a_training_on_request_only(spec, seconds):
    assert spec.standby_s == seconds


def test_a_standby_does_not_hold_back_the_signals_that_its_agent_does():
    """In its ranks SIGQUIT, which writes a stack, and the user's alarms would wait for ever."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        waiting = WaitingTorchrun(Spec(), partial(prepare_torchrun, os.getpid()))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert waiting.process is not None
    status = Path(f"/proc/{waiting.process.pid}/status").read_text()
    waiting.process.kill()
    waiting.process.communicate()
    (blocked,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigBlk:"))
    assert int(blocked, 16) == 0


def test_an_agent_that_waits_ends_without_a_record_when_no_attempt_follows(tmp_path):
    (tmp_path / "spec.json").write_text(Spec().to_json())
    argv = [sys.executable, "-m", "slurm_job_kit.jobs.node", tmp_path, "standby"]
    agent = subprocess.Popen(
        [*argv, "--rdzv-endpoint=-", "--node-rank=0"], cwd=REPOSITORY, stdin=subprocess.PIPE
    )
    agent.communicate(timeout=60)  # closes the pipe
    assert agent.returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["spec.json"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("3 10.0.0.1:15000\n", (3, "10.0.0.1:15000", 4)),
        ("3 10.0.0.1:15000 n1,n2\n", (3, "10.0.0.1:15000", 1)),
        ("3 10.0.0.1:15000 n1,n3\n", None),
        ("", None),
    ],
)
def test_which_attempt_an_agent_has_waited_for(monkeypatch, line, expected):
    monkeypatch.setenv("KIT_NODE", "n2")
    monkeypatch.setattr("sys.stdin", io.StringIO(line))
    assert standby.next_attempt(node_rank=4) == expected


def agent_of_spares(run, spares):
    """The agent of the node n4, which waits."""
    run.spec.write_text(Spec(slurm=Slurm(gpus_per_node=99)).to_json())
    run.unfit_spare("n4").parent.mkdir()
    argv = [sys.executable, "-m", "slurm_job_kit.jobs.node", run.path, "standby"]
    run.job_log.write_text("2026-11-25 16:00:00 attempt 1: 1 node, rendezvous at 10.0.0.1:1\n")
    with open(run.job_log, "ab") as log:
        return subprocess.Popen(
            [*argv, f"--rdzv-endpoint={spares}", "--node-rank=0"],
            cwd=REPOSITORY,
            env=os.environ | {"KIT_NODE": "n4"},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
        )


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def test_the_agent_of_a_spare_node_records_why_its_node_is_unfit(tmp_path):
    run = RunDir(tmp_path)
    agent = agent_of_spares(run, "n3,n4")
    wait_for(run.unfit_spare("n4").exists)
    agent.communicate(timeout=60)  # closes the pipe
    assert agent.returncode == 0
    assert "and the ranks need 99" in run.unfit_spare("n4").read_text()
    assert {path.name for path in tmp_path.iterdir()} == {"spec.json", "standby", "job.log"}
    lines = silent_end.job_lines(run.job_log, 1)
    assert "and the ranks need 99" in lines[0]
    assert silent_end.agent_words(lines) == ""  # nothing that the attempt could have failed for


def test_only_a_spare_node_is_tested(tmp_path):
    agent = agent_of_spares(RunDir(tmp_path), "n3")
    (waiting,) = wait_for(lambda: children(agent.pid))
    wait_for(lambda: "node.preload" in Path(f"/proc/{waiting}/cmdline").read_text())
    time.sleep(0.5)  # there is nothing to see: the test begins at once
    assert children(agent.pid) == [waiting]
    agent.communicate(timeout=60)
    assert agent.returncode == 0


# Stands for the test: the file `found` has what it finds, and `hang` for one that does not end.
STUB = """
import sys, time
from pathlib import Path
found = Path(sys.argv[1], "found").read_text()
time.sleep(1000 if found == "hang" else 0)
sys.exit(found or None)
"""


@pytest.fixture
def spare(tmp_path, monkeypatch):
    """The test of the spare node n4, by the stub."""
    (tmp_path / "stub.py").write_text(STUB)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("KIT_NODE", "n4")
    monkeypatch.setattr(standby, "PREFLIGHT", "stub")
    monkeypatch.setattr(standby, "TEST_INTERVAL_S", 0.0)
    RunDir(tmp_path).unfit_spare("").parent.mkdir()
    test = SpareTest(RunDir(tmp_path), Spec(), lambda: None)
    yield test
    test.end()


def record_of(spare, run, found):
    """What the record of the spare node has when its test has found something."""
    run.unfit_spare("").with_name("found").write_text(found)
    wait_for(lambda: spare.go_on() == 0.0)  # until then the test runs
    record = run.unfit_spare("n4")
    return record.read_text() if record.exists() else None


def test_the_record_of_a_spare_node_is_that_of_its_last_test(spare, tmp_path):
    run = RunDir(tmp_path)
    assert record_of(spare, run, "") is None
    full = "/tmp: No space left on device"
    assert record_of(spare, run, full) == f"{full}\n"
    assert record_of(spare, run, f"a warning\n{full}") == f"{full}\n"
    assert record_of(spare, run, "") is None


def test_a_test_of_a_spare_node_that_hangs_is_ended(spare, tmp_path, monkeypatch):
    before = children(os.getpid())
    monkeypatch.setattr(standby, "TEST_LIMIT_S", 0.5)
    assert record_of(spare, RunDir(tmp_path), "hang") == "its test did not end within 0 s\n"
    assert {*children(os.getpid())} <= {*before}
    monkeypatch.setattr(standby, "TEST_LIMIT_S", 60.0)
    assert record_of(spare, RunDir(tmp_path), "") is None


def test_no_test_of_a_spare_node_runs_on_beside_the_next_attempt(spare, tmp_path, monkeypatch):
    (tmp_path / "standby/found").write_text("hang")
    (tmp_path / "line").write_text("3 10.0.0.1:15000 n1,n4\n")
    with open(tmp_path / "line") as line:
        monkeypatch.setattr("sys.stdin", line)
        before = children(os.getpid())
        assert standby.next_attempt(0, spare) == (3, "10.0.0.1:15000", 1)
    assert {*children(os.getpid())} <= {*before}
    assert not RunDir(tmp_path).unfit_spare("n4").exists()
