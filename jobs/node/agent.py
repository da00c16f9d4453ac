"""What the node agent does: starts torchrun, tells the ranks to stop, writes down what it saw."""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from jobs import records
from jobs.console import BestEffort, say
from jobs.node.oom import oom_kills
from jobs.node.rank import die_with_parent
from jobs.node.stop_signals import STOP_SIGNALS, let_in
from jobs.node.torchrun import Node, stop_signal, torchrun_command
from jobs.procfs import children
from jobs.records import AgentRecord, AttemptPlan, StopSignal
from jobs.rundir import AttemptDir, RunDir, Timeline
from jobs.spec import Spec

REPEAT_S = 1.0
PLAN_TIMEOUT_S = 60
# torchrun waits without a limit for an answer of a store whose node is cut off or stopped. Before
# it has ranks it imports torch, connects (read_timeout) and meets the others (join_timeout); after
# them it waits 300 s at most for theirs to end. Source: torch.distributed.elastic, exit_barrier.
START_LIMIT_S = 1200.0
END_LIMIT_S = 330.0


def tell_to_stop(ranks: list[int], number: signal.Signals) -> None:
    """Send the one signal that these ranks understand."""
    for pid in ranks:
        with contextlib.suppress(ProcessLookupError):  # it ended just now
            os.kill(pid, number)


def prepare_torchrun(agent_pid: int) -> None:
    """Between fork and exec: die with the agent, and inherit ignored stop signals."""
    die_with_parent()
    if os.getppid() != agent_pid:  # it died before the kernel knew what that means to us
        os._exit(1)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it, and we end torchrun by it
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


class Agent:
    """One torchrun and the signals that arrive while it runs."""

    def __init__(self, attempt_dir: AttemptDir, node: Node, timeline: Timeline) -> None:
        self.attempt_dir = attempt_dir
        self.node = node
        self.timeline = timeline
        self.oom_kills_before = oom_kills()
        # A full disk must not end a training that could go on.
        self.best_effort = BestEffort(f"agent on {node.host}")
        self.signals: list[StopSignal] = []
        self.wakeup, wakeup_write = socket.socketpair()
        self.wakeup.setblocking(False)
        wakeup_write.setblocking(False)
        self._wakeup_write = wakeup_write
        for number in (*STOP_SIGNALS, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        # A storm of signals may fill the pipe; what is in it already says enough.
        signal.set_wakeup_fd(wakeup_write.fileno(), warn_on_full_buffer=False)
        let_in()

    def run(self, command: list[str], env: dict[str, str], stop: signal.Signals | None) -> int:
        """Run torchrun to its end; returns its exit code (-N: ended by signal N).

        `stop`: what the ranks take for a stop; with None they are never signalled.
        """
        self.save(None)
        self.event("torchrun", host=self.node.host, nproc_per_node=self.node.nproc)
        prepare = partial(prepare_torchrun, os.getpid())
        with self.torchrun_log() as log:
            torchrun = subprocess.Popen(
                command, env=env, preexec_fn=prepare, stdout=log, stderr=log
            )
        has_ranks, rankless_s = False, 0.0
        while torchrun.poll() is None:
            began = time.monotonic()
            new = self.wait_for_signal()
            ranks = children(torchrun.pid)
            has_ranks = has_ranks or bool(ranks)
            # Not by the clock alone: a suspended job did not wait.
            rankless_s += min(time.monotonic() - began, 2 * REPEAT_S)
            rankless_s = 0.0 if ranks else rankless_s
            if rankless_s > (END_LIMIT_S if has_ranks else START_LIMIT_S):
                torchrun.kill()
            if not self.signals:
                continue
            if not has_ranks:  # nothing to save yet; later on, no ranks means they are through
                torchrun.send_signal(signal.SIGHUP)
            elif stop is not None:
                tell_to_stop(ranks, stop)
            for name in new:  # only now: a busy file system must not hold up the stop
                self.create_stop_file()
                self.event("signal", signal=name)
                self.save(None)
        self.save(torchrun.returncode)
        self.event("torchrun_end", exit_code=torchrun.returncode)
        return torchrun.returncode

    @contextlib.contextmanager
    def torchrun_log(self) -> Iterator[int | None]:
        """A descriptor for torchrun's output; None, this process's own, if that file fails."""
        log = None
        with self.best_effort():
            path = self.attempt_dir.torchrun_log(self.node.rank)
            log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            yield log
        finally:
            if log is not None:
                os.close(log)

    def create_stop_file(self) -> None:
        """Leave the warning where a script of one's own may look for it."""
        with self.best_effort():
            os.close(os.open(self.attempt_dir.stop_requested, os.O_CREAT | os.O_WRONLY, 0o600))

    def event(self, name: str, **fields: Any) -> None:
        """Note in the timeline that `name` happened now."""
        with self.best_effort():
            self.timeline.event(name, **fields)

    def wait_for_signal(self) -> list[str]:
        """Wait for a signal, at most REPEAT_S; returns the stop signals not seen before."""
        select.select([self.wakeup], [], [], REPEAT_S)
        try:
            arrived = self.wakeup.recv(4096)
        except BlockingIOError:
            return []
        known = {each.signal for each in self.signals}
        stops = [signal.Signals(number).name for number in arrived if number in STOP_SIGNALS]
        new = [name for name in dict.fromkeys(stops) if name not in known]
        self.signals += [StopSignal(round(time.time(), 3), name) for name in new]
        return new

    def save(self, exit_code: int | None) -> None:
        """Write down what this node knows, for `attempt close`."""
        record = AgentRecord(
            host=self.node.host,
            address=self.node.address,
            # `attempt close` ends the step by this id where srun has left it behind.
            step_id=os.environ.get("SLURM_STEP_ID"),
            signals=tuple(self.signals),
            torchrun_exit=exit_code,
            end=None if exit_code is None else round(time.time(), 3),
            oom_kill=self.oom_kills(),
        )
        with self.best_effort():
            records.write(self.attempt_dir.agent(self.node.rank), record)

    def oom_kills(self) -> int:
        """How many processes of this node the kernel has killed for memory since the start."""
        now, before = oom_kills(), self.oom_kills_before
        return 0 if now is None or before is None else now - before


def wait_for_plan(attempt_dir: AttemptDir) -> AttemptPlan:
    """The attempt's plan, as soon as this node's file system shows it."""
    deadline = time.monotonic() + PLAN_TIMEOUT_S
    while (plan := records.read(AttemptPlan, attempt_dir.plan)) is None:
        if time.monotonic() > deadline:
            sys.exit(
                f"{socket.gethostname()}: {attempt_dir.plan} is not there after {PLAN_TIMEOUT_S} s"
                "\n  hint: runs_root must lie on a file system that all nodes share"
            )
        time.sleep(0.1)
    return plan


def main(argv: list[str]) -> int:
    """Run one node's share of an attempt; 0 if its torchrun ended well."""
    parser = argparse.ArgumentParser(prog="python -m jobs.node", description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("attempt", type=int)
    parser.add_argument("--rdzv-endpoint", required=True, metavar="ADDRESS:PORT")
    parser.add_argument("--node-rank", type=int, default=os.environ.get("SLURM_NODEID"))
    args = parser.parse_args(argv)
    if args.node_rank is None:
        parser.error("no SLURM_NODEID: give --node-rank")
    run_dir = RunDir(args.run_dir)
    attempt_dir = run_dir.attempt(args.attempt)
    try:
        plan = wait_for_plan(attempt_dir)
        spec = Spec.read(run_dir.spec)
    except OSError as error:
        sys.exit(f"{socket.gethostname()}: the run directory cannot be read: {error}")
    try:
        node = Node(int(args.node_rank), plan, spec)
    except OSError as error:
        host, head = socket.gethostname(), plan.head_address
        sys.exit(f"{host}: there is no way to the first node at {head}: {error}")
    timeline = Timeline(run_dir, f"agent-{node.rank:05d}", args.attempt)
    agent = Agent(attempt_dir, node, timeline)
    command = torchrun_command(spec, run_dir, node.options(plan, args.rdzv_endpoint))
    if node.rank == 0:  # the others differ in is_host and --local-addr
        say(f"attempt {args.attempt}, {node.host}: {shlex.join(command)}")
    env = node.environment(spec, run_dir, plan)
    return 0 if agent.run(command, env, stop_signal(spec.launch)) == 0 else 1
