"""torchrun's process ends at once, with torchrun's status and all of its output."""

import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from slurm_job_kit.jobs import hooks
from slurm_job_kit.jobs.base.environment import Program
from slurm_job_kit.jobs.base.stop_signals import END_TORCHRUN
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.contract.spec import Launch, Spec
from slurm_job_kit.jobs.node.agent import prepare_torchrun
from slurm_job_kit.jobs.node.signed_torchrun import LAUNCHER
from slurm_job_kit.jobs.node.torchrun import NodeOptions, torchrun_command
from slurm_job_kit.jobs.plugins.fast_start.hooks import FORKED_RANK

pytestmark = pytest.mark.long  # torchrun imports torch

REPOSITORY = Path(__file__).resolve().parents[3]
SPEC = Spec(launch=Launch(fork=True))
# In place of torch.distributed.run, whose own end a test of a local run waits for.
STUB = """
import atexit, sys

def main(arguments):
    atexit.register(print, "torn down")
    print("trained with", *arguments, end="")
    if arguments == ["failing"]:
        raise ValueError("a rank failed")
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
    [("well", 0, False, ""), ("failing", 1, False, "a rank failed"), ("refused", 2, True, "")],
)
def test_torchrun_ends_without_a_tear_down(tmp_path, argument, status, tears_down, error):
    code = "preload.run_torchrun(['stub', *sys.argv[1:]])"
    done = preloaded(tmp_path, code, argument, stub=STUB)
    assert done.returncode == status
    assert done.stdout.startswith(f"trained with {argument}")
    assert ("torn down" in done.stdout) is tears_down
    assert error in done.stderr


# As torch: what the first import has left makes a second one fail for another reason.
FAILS_ANEW = """
import builtins
builtins.tries = getattr(builtins, "tries", 0) + 1
bad = "\\nTORCH_LOGS is invalid\\nValid settings:\\nall, aot"
raise ValueError(bad if builtins.tries == 1 else "triton is registered twice")
"""


def test_the_reason_is_that_of_the_first_import_of_torch(tmp_path):
    code = "preload.TORCHRUN = 'stub'; preload.main(['stub', 'stub', 'x'])"
    done = preloaded(tmp_path, code, stub=FAILS_ANEW)
    assert done.returncode == 1
    assert done.stderr.endswith("TORCH_LOGS is invalid\nValid settings:\nall, aot\n")


# The fork begins while the thread still imports, as that of the first rank may do.
IMPORTED = """
import gc, forking
assert forking.begun.wait(60)
print("imported with a collector:", gc.isenabled(), flush=True)
kept = [[] for _ in range(100_000)]
"""
FORKING = """
import gc, os, threading
begun = threading.Event()

def main(arguments):
    begun.set()
    if os.fork() == 0:
        print("rank with a collector:", gc.isenabled())
        print("imports frozen:", gc.get_freeze_count() > 100_000, flush=True)
        os._exit(0)
    os.wait()
"""


def test_the_garbage_collector_does_not_look_at_the_imports(tmp_path):
    code = "preload.TORCHRUN, preload.LATE_IMPORTS = 'forking', (); "
    code += "preload.main(['imported', 'forking'])"
    done = preloaded(tmp_path, code, imported=IMPORTED, forking=FORKING)
    assert done.stdout.splitlines() == [
        "imported with a collector: False",
        "rank with a collector: True",
        "imports frozen: True",
    ]


# The import lasts as long as torchrun lives; the file shows that the fork of a rank waits for it.
ENDLESS = """
import os, sys, threading, time, traceback
def calls(thread):
    frames = traceback.walk_stack(sys._current_frames()[thread.ident])
    return [frame.f_code for frame, _ in frames]
while threading.Thread.join.__code__ not in calls(threading.main_thread()):
    time.sleep(0.01)
open(os.environ["WAITS"], "w").close()
time.sleep(600)
"""


def test_a_stop_ends_a_torchrun_whose_ranks_wait_for_the_imports(tmp_path):
    """A rank that is forked out of an unfinished import may wait for it for ever."""
    (tmp_path / "endless.py").write_text(ENDLESS)
    (tmp_path / "rank.py").write_text("import os; os._exit(7)")
    waits = tmp_path / "waits"
    node = NodeOptions(1, 1, "127.0.0.1:0", "7-1", True, "127.0.0.1", str(tmp_path))
    command = torchrun_command(Spec(), RunDir(tmp_path), node)
    command, variables = hooks.launch_command(Program.TORCHRUN, command, os.environ, SPEC)
    command[command.index(LAUNCHER) - 1] = "endless"
    command[command.index(str(FORKED_RANK))] = str(tmp_path / "rank.py")
    env = variables | {"PYTHONPATH": f"{REPOSITORY}:{tmp_path}", "WAITS": str(waits)}
    env |= {"KIT_RUN_DIR": str(tmp_path), "KIT_ATTEMPT": "1"}
    (tmp_path / "attempt-1").mkdir()
    (tmp_path / "attempt-1/rendezvous.key").write_bytes(b"k")
    with open(tmp_path / "log", "w") as log:
        torchrun = subprocess.Popen(
            command, env=env, preexec_fn=partial(prepare_torchrun, os.getpid()), stderr=log
        )
    deadline = time.monotonic() + 60
    while not waits.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    torchrun.send_signal(END_TORCHRUN)
    assert torchrun.wait(30) == -END_TORCHRUN, (tmp_path / "log").read_text()
