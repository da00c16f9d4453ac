"""torchrun's process ends at once, with torchrun's status and all of its output."""

import os
import subprocess
import sys
from functools import partial

import pytest

from slurm_job_kit.jobs import hooks
from slurm_job_kit.jobs.base.environment import Program
from slurm_job_kit.jobs.base.procfs import parent_of
from slurm_job_kit.jobs.base.stop_signals import END_TORCHRUN
from slurm_job_kit.jobs.contract.rank_start import RANKS_DIR
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.contract.spec import Launch, Spec
from slurm_job_kit.jobs.node.agent import prepare_torchrun
from slurm_job_kit.jobs.node.signed_torchrun import LAUNCHER
from slurm_job_kit.jobs.node.torchrun import NodeOptions, torchrun_command
from tests.core.run_files import REPOSITORY
from tests.core.waiting import wait_for

pytestmark = pytest.mark.long  # torchrun imports torch

SPEC = Spec(launch=Launch(fork=True))
# In place of torch.distributed.run, whose own end a test of a local run waits for.
STUB = """
import atexit, logging, sys, torch
def main(arguments):
    atexit.register(print, "torn down")
    print("trained with", *arguments, end="")
    if arguments == ["failing"]:
        logging.getLogger("torch.distributed").exception("", exc_info=ValueError("a rank failed"))
        raise ValueError(f"torch._dynamo: {'torch._dynamo' in sys.modules}")
    if arguments == ["refused"]:
        sys.exit(2)
"""


def preloaded(folder, code, *arguments, **modules):
    """The finished process of this code, which has the module and those of the folder."""
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    env = os.environ | {"PYTHONPATH": f"{REPOSITORY}:{folder}"}
    code = f"import sys; from slurm_job_kit.jobs.plugins.fast_start import preload; {code}"
    argv = [sys.executable, "-c", code, *arguments]
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("argument", "status", "tears_down", "error"),
    [("well", 0, False, ""), ("failing", 1, False, "_dynamo: False"), ("refused", 2, True, "")],
)
def test_torchrun_ends_without_a_tear_down(tmp_path, argument, status, tears_down, error):
    code = "preload.run_torchrun(['stub', *sys.argv[1:]])"
    done = preloaded(tmp_path, code, argument, stub=STUB)
    assert done.returncode == status
    assert done.stdout.startswith(f"trained with {argument}")
    assert ("torn down" in done.stdout) is tears_down
    assert error in done.stderr


IMPORTED = "kept = [[] for _ in range(100_000)]"
FORKING = """
import gc, multiprocessing, os, threading, time

def rank():
    print("threads beside:", os.listdir(f"/proc/{os.getppid()}/task") != [str(os.getppid())])
    print("imports frozen:", gc.get_freeze_count() > 100_000, gc.isenabled(), flush=True)

def main(arguments):
    threading.Thread(target=time.sleep, args=[60], daemon=True).start()
    process = multiprocessing.get_context("forkserver").Process(target=rank)
    process.start()
    process.join()
"""


def test_a_rank_is_forked_out_of_a_process_without_threads(tmp_path, monkeypatch):
    """A lock of the C library that a thread holds at a fork is never released in the copy."""
    monkeypatch.setenv(RANKS_DIR, str(tmp_path))
    code = "preload.TORCHRUN = 'forking'; preload.main(['imported', 'forking'])"
    done = preloaded(tmp_path, code, imported=IMPORTED, forking=FORKING)
    assert done.stdout == "threads beside: False\nimports frozen: True True\n", done.stderr


ENDLESS = """
import os, time
os.symlink(str(os.getpid()), os.environ["KIT_RANKS_DIR"] + "/server")
time.sleep(600)
"""


def test_a_stop_ends_a_torchrun_whose_ranks_wait_for_the_imports(tmp_path):
    (tmp_path / "endless.py").write_text(ENDLESS)
    node = NodeOptions(1, 1, "127.0.0.1:0", "7-1", True, "127.0.0.1", str(tmp_path))
    command = torchrun_command(Spec(), RunDir(tmp_path), node)
    command, variables = hooks.launch_command(Program.TORCHRUN, command, os.environ, SPEC)
    command[command.index(LAUNCHER) - 1] = "endless"
    env = variables | {"PYTHONPATH": f"{REPOSITORY}:{tmp_path}", RANKS_DIR: str(tmp_path)}
    env |= {"KIT_RUN_DIR": str(tmp_path), "KIT_ATTEMPT": "1"}
    (tmp_path / "attempt-1").mkdir()
    (tmp_path / "attempt-1/rendezvous.key").write_bytes(b"k")
    with open(tmp_path / "log", "w") as log:
        torchrun = subprocess.Popen(
            command, env=env, preexec_fn=partial(prepare_torchrun, os.getpid()), stderr=log
        )
    wait_for((tmp_path / "server").is_symlink, "no import")
    server = int(os.readlink(tmp_path / "server"))
    torchrun.send_signal(END_TORCHRUN)
    assert torchrun.wait(30) == -END_TORCHRUN, (tmp_path / "log").read_text()
    wait_for(lambda: parent_of(server) is None, "the fork server lives on")
