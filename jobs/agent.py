"""The node agent: owns the stop signals of one node, starts torchrun, tells the ranks to stop.

    srun python -m jobs.agent RUN_DIR ATTEMPT

Slurm reaches different processes on different sites: the whole tree (proctrack/linuxproc), the
process group, or only this one (proctrack/cgroup). So only this one listens. torchrun and the
ranks inherit *ignored* stop signals: torchrun would orphan its ranks at SIGUSR1, and at SIGTERM
gives them 30 s and reports failure. Each rank installs its own handler as its first act; the
agent repeats the stop every second, because one that comes before is lost. What stops a rank is
SIGTERM for our trainer, and what launch.stop_signal says for somebody's own script: one that knows
of no stop is never signalled, and an inherited ignored signal does not kill one that is starting.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jobs import rendezvous
from jobs.rank import die_with_parent, parent_of
from jobs.rundir import AttemptDir, RunDir, Timeline, read_json, write_json
from jobs.spec import Launch, Spec
from jobs.talk import BestEffort

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
REPEAT_S = 1.0
PLAN_TIMEOUT_S = 60
JOIN_TIMEOUT_S = 600  # the slowest node's import of torch from a busy file system
SHUTDOWN_TIMEOUT_S = 5  # torchrun's patience with ranks that survive their peers


def nproc_per_node(spec: Spec, environ: dict[str, str]) -> int:
    """Ranks on this node: as the spec says; for auto one per GPU, or one where there is none."""
    if spec.launch.nproc_per_node != "auto":
        return spec.launch.nproc_per_node
    if spec.slurm.gpus_per_node:
        return spec.slurm.gpus_per_node
    on_node = environ.get("SLURM_GPUS_ON_NODE", "")
    if on_node.isdigit() and int(on_node) > 0:
        return int(on_node)
    visible = [device for device in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if device]
    return max(1, len(visible))


def rank_command(spec: Spec, run_dir: RunDir) -> list[str]:
    """What each rank becomes."""
    launch = spec.launch
    if launch.script is not None:
        return [sys.executable, "-u", launch.script, *launch.args]
    if launch.module is not None:
        return [sys.executable, "-u", "-m", launch.module, *launch.args]
    return [sys.executable, "-u", "-m", "trainer", str(run_dir.path), *launch.args]


def torchrun_command(spec: Spec, run_dir: RunDir, plan: dict[str, Any], node: Node) -> list[str]:
    """The torchrun command line of one node. Source: torch.distributed.run."""
    timeouts = f"join_timeout={JOIN_TIMEOUT_S},read_timeout=180"
    return [
        *(sys.executable, "-m", "torch.distributed.run"),
        f"--nnodes={len(plan['nodes'])}",
        f"--nproc-per-node={node.nproc}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={plan['rdzv_endpoint']}",
        f"--rdzv-id={plan['rdzv_id']}",
        # Left to itself torchrun guesses by host name who hosts the store.
        f"--rdzv-conf=is_host={str(node.rank == 0).lower()},{timeouts}",
        f"--local-addr={node.address}",
        "--max-restarts=0",
        "--signals-to-handle=SIGHUP,SIGQUIT",
        f"--shutdown-timeout={SHUTDOWN_TIMEOUT_S}",
        # Without -- torchrun takes a script's own --n for an abbreviation of its options.
        *("-m", "--", "jobs.rank", str(run_dir.path)),
        *rank_command(spec, run_dir),
    ]


class Node:
    """This node's place in the attempt."""

    def __init__(self, rank: int, plan: dict[str, Any], spec: Spec) -> None:
        self.rank = rank
        self.host = socket.gethostname()
        head = plan["head_address"]
        self.address = head if rank == 0 else rendezvous.source_address(head)
        self.interface = rendezvous.interface_of(self.address)
        self.nproc = nproc_per_node(spec, dict(os.environ))

    def environment(self, spec: Spec, run_dir: RunDir, plan: dict[str, Any]) -> dict[str, str]:
        """The environment of torchrun and the ranks; what the user has set wins."""
        attempt = plan["attempt"]
        env = dict(os.environ)
        # Gloo looks its own host name up and silently takes loopback where that is 127.0.1.1.
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            if self.interface is not None:
                env.setdefault(name, self.interface)
        return env | {
            "KIT_AGENT_PID": str(os.getpid()),
            "KIT_RUN_DIR": str(run_dir.path),
            "KIT_CHECKPOINT_DIR": str(run_dir.checkpoints),
            "KIT_ATTEMPT": str(attempt),
            "KIT_STOP_FILE": str(run_dir.attempt(attempt).stop),
            "KIT_DEADLINE": str(plan.get("deadline") or ""),
            "OMP_NUM_THREADS": str(spec.launch.threads_per_rank),
            **spec.launch.env,
        }


def children(pid: int) -> Iterator[int]:
    """The pids of a process's children."""
    for entry in os.listdir("/proc"):
        if entry.isdigit() and parent_of(int(entry)) == pid:
            yield int(entry)


def stop_signal(launch: Launch) -> signal.Signals | None:
    """What tells a rank to stop; None for a script that is not made for any signal."""
    if launch.is_trainer:
        return signal.SIGTERM
    if launch.stop_signal == "none":
        return None
    return signal.Signals[f"SIG{launch.stop_signal}"]


def tell_to_stop(ranks: list[int], number: signal.Signals) -> None:
    """Send the one signal that these ranks understand."""
    for pid in ranks:
        with contextlib.suppress(ProcessLookupError):  # it ended just now
            os.kill(pid, number)


def prepare_torchrun() -> None:
    """Between fork and exec: die with the agent, and inherit ignored stop signals."""
    die_with_parent()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it, and we end torchrun by it
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


class Agent:
    """One torchrun and the signals that arrive while it runs."""

    def __init__(self, attempt_dir: AttemptDir, node: Node, timeline: Timeline) -> None:
        self.attempt_dir = attempt_dir
        self.node = node
        self.timeline = timeline
        # A full disk must not end a training that could go on.
        self.best_effort = BestEffort(f"agent on {node.host}")
        self.signals: list[dict[str, Any]] = []
        self.wakeup, wakeup_write = socket.socketpair()
        self.wakeup.setblocking(False)
        wakeup_write.setblocking(False)
        self._wakeup_write = wakeup_write
        for number in (*STOP_SIGNALS, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        # A storm of signals may fill the pipe; what is in it already says enough.
        signal.set_wakeup_fd(wakeup_write.fileno(), warn_on_full_buffer=False)

    def run(self, command: list[str], env: dict[str, str], stop: signal.Signals | None) -> int:
        """Run torchrun to its end; returns its exit code (-N: ended by signal N).

        `stop`: what the ranks take for a stop; with None they are never signalled.
        """
        self.save(None)
        self.event("torchrun", host=self.node.host, nproc_per_node=self.node.nproc)
        torchrun = subprocess.Popen(command, env=env, preexec_fn=prepare_torchrun)
        has_ranks = False
        while torchrun.poll() is None:
            new = self.wait_for_signal()
            ranks = list(children(torchrun.pid))
            has_ranks = has_ranks or bool(ranks)
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

    def create_stop_file(self) -> None:
        """Leave the warning where a script of one's own may look for it."""
        with self.best_effort():
            os.close(os.open(self.attempt_dir.stop, os.O_CREAT | os.O_WRONLY, 0o600))

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
        known = {entry["signal"] for entry in self.signals}
        stops = [signal.Signals(number).name for number in arrived if number in STOP_SIGNALS]
        new = [name for name in dict.fromkeys(stops) if name not in known]
        self.signals += [{"t": round(time.time(), 3), "signal": name} for name in new]
        return new

    def save(self, exit_code: int | None) -> None:
        """Write down what this node knows, for `attempt close`."""
        record = {"host": self.node.host, "address": self.node.address}
        end = None if exit_code is None else round(time.time(), 3)
        state = {"signals": self.signals, "torchrun_exit": exit_code, "end": end}
        with self.best_effort():
            write_json(self.attempt_dir.node(self.node.rank), record | state)


def wait_for_plan(attempt_dir: AttemptDir) -> dict[str, Any]:
    """The attempt's plan, as soon as this node's file system shows it."""
    deadline = time.monotonic() + PLAN_TIMEOUT_S
    while (plan := read_json(attempt_dir.plan)) is None:
        if time.monotonic() > deadline:
            sys.exit(
                f"{socket.gethostname()}: {attempt_dir.plan} is not there after {PLAN_TIMEOUT_S} s"
                "\n  hint: runs_root must lie on a file system that all nodes share"
            )
        time.sleep(0.1)
    return dict(plan)


def main(argv: list[str] | None = None) -> int:
    """Run one node's share of an attempt; 0 if its torchrun ended well."""
    parser = argparse.ArgumentParser(prog="python -m jobs.agent", description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("attempt", type=int)
    parser.add_argument("--node-rank", type=int, default=os.environ.get("SLURM_NODEID"))
    args = parser.parse_args(argv)
    if args.node_rank is None:
        parser.error("no SLURM_NODEID: give --node-rank")
    run_dir = RunDir(args.run_dir)
    attempt_dir = run_dir.attempt(args.attempt)
    try:
        plan = wait_for_plan(attempt_dir)
        spec = Spec.from_json(run_dir.spec.read_text(encoding="utf-8"))
    except OSError as error:
        sys.exit(f"{socket.gethostname()}: the run directory cannot be read: {error}")
    node = Node(int(args.node_rank), plan, spec)
    timeline = Timeline(run_dir, f"agent-{node.rank:05d}", args.attempt)
    agent = Agent(attempt_dir, node, timeline)
    command = torchrun_command(spec, run_dir, plan, node)
    env = node.environment(spec, run_dir, plan)
    return 0 if agent.run(command, env, stop_signal(spec.launch)) == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
