"""The torchrun of the next attempt, which imports torch while the present attempt trains.

After a crash the next attempt then starts about two seconds earlier. Its agent waits on stdin for
the line "ATTEMPT ENDPOINT [NODE,NODE...]"; the end of the file means that no attempt follows.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from slurm_job_kit.jobs import environment
from slurm_job_kit.jobs.node import oom
from slurm_job_kit.jobs.node.preload import TorchrunCall
from slurm_job_kit.jobs.node.torchrun import preload_command, variables_of_spec
from slurm_job_kit.jobs.records.nodes import node_name
from slurm_job_kit.jobs.spec import Spec

WORD = "standby"  # in place of the attempt's number
# The process has 0.3 GB with a torch for CPUs, and waits beside the ranks of the present attempt.
NEEDED_BYTES = 2 * 2**30


class WaitingTorchrun:
    """A process that has imported torch, or nothing where memory is scarce; it becomes torchrun."""

    def __init__(self, spec: Spec, prepare: Callable[[], None]) -> None:
        """`prepare`: called in the new process before exec."""
        self._preload = preload_command(spec)
        self.process: subprocess.Popen[bytes] | None = None
        if oom.free_bytes() >= NEEDED_BYTES:
            # torch reads some of these variables at its import
            env = environment.variables_for(os.environ, environment.Door.TORCHRUN)
            env |= variables_of_spec(spec)
            self._call = os.memfd_create("torchrun call")
            self.process = subprocess.Popen(
                [*self._preload, str(self._call)],
                env=env,
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


def next_attempt(node_rank: int) -> tuple[int, str, int] | None:
    """Wait for the next attempt: its number, its rendezvous endpoint, this node's rank in it.

    node_rank: among the nodes that wait. None if no attempt follows, or one without this node.
    """
    words = sys.stdin.readline().split()
    if len(words) < 2:
        return None
    if len(words) > 2:
        nodes, me = words[2].split(","), node_name()
        if me not in nodes:
            return None
        node_rank = nodes.index(me)
    return int(words[0]), words[1], node_rank
