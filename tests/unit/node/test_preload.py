"""torchrun's process ends at once, with torchrun's status and all of its output."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
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


@pytest.mark.parametrize(
    ("argument", "status", "tears_down", "error"),
    [("well", 0, False, ""), ("failing", 1, False, "a rank failed"), ("refused", 2, True, "")],
)
def test_torchrun_ends_without_a_tear_down(tmp_path, argument, status, tears_down, error):
    (tmp_path / "stub.py").write_text(STUB)
    code = "import sys; from slurm_job_kit.jobs.node import preload; "
    code += "preload.run_torchrun(['stub', *sys.argv[1:]])"
    env = os.environ | {"PYTHONPATH": f"{REPOSITORY}:{tmp_path}"}
    argv = [sys.executable, "-c", code, argument]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == status
    assert done.stdout.startswith(f"trained with {argument}")
    assert ("torn down" in done.stdout) is tears_down
    assert error in done.stderr


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
    (tmp_path / "imported.py").write_text(IMPORTED)
    (tmp_path / "forking.py").write_text(FORKING)
    code = "from slurm_job_kit.jobs.node import preload; "
    code += "preload.TORCHRUN, preload.LATE_IMPORTS = 'forking', (); "
    code += "preload.main(['imported', 'forking'])"
    env = os.environ | {"PYTHONPATH": f"{REPOSITORY}:{tmp_path}"}
    said = subprocess.check_output([sys.executable, "-c", code], env=env, text=True, timeout=60)
    assert said.splitlines() == [
        "imported with a collector: False",
        "rank with a collector: True",
        "imports frozen: True",
    ]
