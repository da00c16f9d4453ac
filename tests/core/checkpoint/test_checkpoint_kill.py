"""A process is killed at each system call of a save: every committed checkpoint is complete."""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from slurm_job_kit.jobs.contract.checkpoint import reader
from slurm_job_kit.jobs.contract.checkpoint.manifest import Manifest
from slurm_job_kit.jobs.contract.checkpoint.names import (
    checkpoint_name,
    checkpoint_names,
    checkpoint_step,
)
from slurm_job_kit.trainer.checkpoint import commit
from slurm_job_kit.trainer.checkpoint.commit import PendingCheckpoint, Retention

pytestmark = pytest.mark.long  # a process is killed at each system call

# <sys/ptrace.h>
PTRACE_TRACEME, PTRACE_SYSCALL, PTRACE_SETOPTIONS = 0, 24, 0x4200
PTRACE_O_TRACESYSGOOD, PTRACE_O_EXITKILL = 1, 0x100000
AT_SYSTEM_CALL = signal.SIGTRAP | 0x80
NOT_PERMITTED = 77
# Memory for all forks from the start: each makes as many system calls as the one before it. Without
# it a fork may ask the kernel for memory where the one before had some left (seen: 195 for 193).
FIXED_MEMORY = {
    "PYTHONMALLOC": "malloc",
    "MALLOC_TOP_PAD_": f"{64 * 2**20}",
    "MALLOC_MMAP_THRESHOLD_": f"{2**30}",
    "MALLOC_TRIM_THRESHOLD_": f"{2**30}",
}

OLD = {5: b"oldest" * 1000, 10: b"old" * 1000}
NEW = b"new" * 1000


def save(root, step, content):
    files = {"rank-00000.safetensors": lambda sink: sink.write(content)}
    pending = PendingCheckpoint(Manifest(step, files={}), files, lambda: None)
    commit.commit_and_prune(root, pending, Retention(2, best_step=step))


def ptrace(request, pid, data=0):
    library = ctypes.CDLL(None, use_errno=True)
    library.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    if library.ptrace(request, pid, None, data) == -1:
        raise OSError(ctypes.get_errno(), "ptrace")


def start_traced(work):
    """Fork a child that does `work` and stops before and after each system call; return its pid."""
    pid = os.fork()
    if pid == 0:
        try:
            ptrace(PTRACE_TRACEME, 0)
            os.kill(os.getpid(), signal.SIGSTOP)
            work()
        except PermissionError:
            os._exit(NOT_PERMITTED)
        except BaseException:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == NOT_PERMITTED:
        sys.exit(NOT_PERMITTED)
    ptrace(PTRACE_SETOPTIONS, pid, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL)
    return pid


def kill_at(stop, work):
    """Kill `work` at its n-th stop; return False if it ended before that."""
    pid = start_traced(work)
    for _ in range(stop):
        ptrace(PTRACE_SYSCALL, pid)
        _, status = os.waitpid(pid, 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            return False
        assert os.WSTOPSIG(status) == AT_SYSTEM_CALL
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return True


def found_after_a_kill(root):
    """Check that all committed checkpoints are complete and no other file is left; return steps."""
    names = checkpoint_names(root)
    steps = [step for name in names if (step := checkpoint_step(name)) is not None]
    for step in steps:
        reader.check(root / checkpoint_name(step))
        part = root / checkpoint_name(step) / "rank-00000.safetensors"
        assert part.read_bytes() == (OLD | {15: NEW})[step]
    commit.remove_leftovers(root)
    left = {path.name for path in root.iterdir()}
    assert left == {"latest", "best", *names}, left
    return steps


def kill_everywhere(base):
    """Print the steps that were committed after a kill at each stop, as JSON."""
    first = base / "first"
    first.mkdir()
    for step, content in OLD.items():
        save(first, step, content)
    counts: list[list[int]] = []
    while True:
        root = base / "root"
        shutil.copytree(first, root)
        was_killed = kill_at(len(counts) + 1, lambda root=root: save(root, 15, NEW))
        counts.append(found_after_a_kill(root))
        shutil.rmtree(root)
        if not was_killed:
            print(json.dumps(counts))
            return


def test_a_kill_at_any_system_call_leaves_whole_checkpoints_only():
    """A process without torch and threads forks fast; a file system in memory syncs fast."""
    repository = Path(__file__).resolve().parents[3]
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as base:
        done = subprocess.run(
            [sys.executable, __file__, base],
            env={**os.environ, **FIXED_MEMORY, "PYTHONPATH": str(repository)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    if done.returncode == NOT_PERMITTED:
        pytest.skip("ptrace is not permitted here")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) > 100
    before, between, after = [10, 5], [15, 10, 5], [15, 10]
    assert found[0] == before and found[-1] == after
    assert found == sorted(found, key=[before, between, after].index)
    assert all(found.count(steps) > 10 for steps in (before, between, after))


if __name__ == "__main__":
    kill_everywhere(Path(sys.argv[1]))
