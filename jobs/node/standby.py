"""The torchrun of the next attempt, which imports torch while the present attempt trains.

After a crash the next attempt then starts about two seconds earlier. Its agent waits on stdin for
the line "ATTEMPT ENDPOINT [NODE,NODE...]"; the end of the file means that no attempt follows.
Meanwhile the agent of a spare node tests its node.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from .. import environment
from ..console import BestEffort, print_line
from ..records.nodes import node_name
from ..rundir import RunDir, write_atomic
from ..spec import Spec
from . import gpu_check, oom
from .preload import PREFLIGHT, TorchrunCall
from .torchrun import preload_command, variables_of_spec

WORD = "standby"  # in place of the attempt's number
# The process has 0.3 GB with a torch for CPUs, and waits beside the ranks of the present attempt.
NEEDED_BYTES = 2 * 2**30
TEST_INTERVAL_S = 600.0
TEST_LIMIT_S = 300.0  # torch is imported from a busy file system, and a disk has 60 s
LOOK_S = 1.0


class WaitingTorchrun:
    """A process that has imported torch, or nothing where memory is scarce; it becomes torchrun."""

    def __init__(self, spec: Spec, prepare: Callable[[], None]) -> None:
        """`prepare`: called in the new process before exec."""
        self._preload = preload_command(spec)
        self.process: subprocess.Popen[bytes] | None = None
        if oom.free_bytes() >= NEEDED_BYTES:
            self._call = os.memfd_create("torchrun call")
            self.process = subprocess.Popen(
                [*self._preload, str(self._call)],
                env=_environment(spec),  # torch reads some of these variables at its import
                stdin=subprocess.PIPE,
                pass_fds=[self._call],
                preexec_fn=prepare,
            )

    def start(
        self, command: list[str], env: dict[str, str], log: Path
    ) -> subprocess.Popen[bytes] | None:
        """Let the process become the torchrun `command`; None if it has ended."""
        process = self.process
        if process is None or process.poll() is not None or process.stdin is None:
            return None
        arguments = command[len(self._preload) :]
        TorchrunCall(arguments, env, str(log)).write(self._call)
        try:
            with process.stdin as pipe:
                pipe.write(b"\n")
        except BrokenPipeError:
            return None
        return process


def _environment(spec: Spec) -> dict[str, str]:
    inherited = environment.variables_for(os.environ, environment.Door.TORCHRUN)
    return inherited | variables_of_spec(spec)


class SpareTest:
    """Tests a spare node at once and every TEST_INTERVAL_S, in processes of their own.

    The process that waits must not use a GPU, and a broken GPU may hang. Why the node failed its
    last test is in the file `RunDir.unfit_spare`, which `attempt.open` reads.
    """

    def __init__(self, run_dir: RunDir, spec: Spec, prepare: Callable[[], None]) -> None:
        """`prepare`: called in each new process before exec."""
        self._host, self._prepare = node_name(), prepare
        self._record = run_dir.unfit_spare(self._host)
        self._env = _environment(spec)
        if environment.unusable_tmpdir(self._env) is not None:  # the ranks do without it, too
            del self._env["TMPDIR"]
        folder, num_gpus = str(self._record.parent), gpu_check.expected_gpus(spec, self._env)
        self._command = [sys.executable, "-m", PREFLIGHT, folder, str(num_gpus)]
        # Such lines of the job's log are no last words of the attempt that trains: silent_end.
        self._warning = f"warning: spare node {self._host}"
        self._best_effort = BestEffort(self._warning)
        self._process: subprocess.Popen[str] | None = None
        self._next, self._limit = time.monotonic(), 0.0

    def go_on(self) -> float:
        """Begin or end a test if it is time for that; returns the seconds until the next call."""
        now = time.monotonic()
        if self._process is not None:
            if self._process.poll() is None and now < self._limit:
                return LOOK_S
            self._write_record(self.end())
        elif now >= self._next:
            self._next, self._limit = now + TEST_INTERVAL_S, now + TEST_LIMIT_S
            with self._best_effort():
                self._process = subprocess.Popen(
                    self._command,
                    env=self._env,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    text=True,
                    preexec_fn=self._prepare,
                )
            return LOOK_S
        return max(0.0, self._next - now)

    def end(self) -> str:
        """End a test, if one runs; returns the problem that it has found, "" for none."""
        process, self._process = self._process, None
        if process is None:
            return ""
        code, printed = process.poll(), ""
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in the driver of a GPU
            printed = process.communicate(timeout=LOOK_S)[1]
        if code is None:
            return f"its test did not end within {TEST_LIMIT_S:.0f} s"
        return [f"its test ended with exit code {code}", *printed.splitlines()][-1] if code else ""

    def _write_record(self, problem: str) -> None:
        with self._best_effort():
            if problem:
                print_line(f"{self._warning}: {problem}")
                write_atomic(self._record, f"{problem}\n")
            else:
                self._record.unlink(missing_ok=True)


def next_attempt(node_rank: int, test: SpareTest | None = None) -> tuple[int, str, int] | None:
    """Wait for the next attempt: its number, its rendezvous endpoint, this node's rank in it.

    node_rank: among the nodes that wait. None if no attempt follows, or one without this node.
    test: of a spare node, until the next attempt begins.
    """
    if test is not None:
        while not select.select([sys.stdin], [], [], test.go_on())[0]:
            pass
        test.end()
    words = sys.stdin.readline().split()
    if len(words) < 2:
        return None
    if len(words) > 2:
        nodes, me = words[2].split(","), node_name()
        if me not in nodes:
            return None
        node_rank = nodes.index(me)
    return int(words[0]), words[1], node_rank
