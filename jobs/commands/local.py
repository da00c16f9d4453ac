"""Runs a frozen run on this machine, in the foreground, in place of the batch script.

It starts one agent per node of the spec, each in its own session, all on loopback. Attempt, agent,
rank and trainer are the code that a cluster runs. The first Ctrl-C is a warning, as Slurm gives
it; a second one kills the agents. A custom script that gets no signal is killed KILL_WAIT_S after
a `cancel` or the end of its terminal, unless it has stopped by itself.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from types import FrameType

from .. import gpus, installation, procfs, records
from ..attempt import srun_step
from ..attempt.close import close_attempt, end_between_attempts
from ..attempt.decision import Action, Cause, Decision
from ..attempt.execute import retry_delay_s
from ..attempt.notify import notify
from ..attempt.open import open_attempt
from ..console import print_line, quantity
from ..errors import UserError
from ..node.prctl import adopt_orphans, die_with_parent
from ..node.torchrun import stop_signal
from ..procfs import children, has_ended
from ..records.ended import read_attempts
from ..records.nodes import AttemptPlan
from ..records.training import Result
from ..rundir import RunDir
from ..runs import run_lock
from ..runs.run_lock import release_on_disk_error
from ..spec import Launch, Spec
from .views.live_progress import ProgressLine

POLL_S = 0.2
MAX_RANKS_PER_CORE = 4
MARK = "KIT_LOCAL_AGENTS"  # an environment variable of all that the agents of an attempt start
ORPHANS_WAIT_S = 10  # for killed processes to end; one that waits for a disk may need longer
KILL_WAIT_S = 30  # for a script that gets no signal; as long as Slurm's own KillWait


class LocalError(UserError):
    """The spec cannot run on this machine; the message has the reason and what to do."""


def run(run_dir: RunDir) -> Decision | None:
    """Run attempts until the run is done, stopped or held; None if it was complete before.

    Raises: LocalError, OwnedError, FailedError.
    """
    spec = Spec.read(run_dir.spec)
    devices = visible_gpus()
    check_machine(spec, len(devices))
    nodes = num_agents(spec, len(devices))
    if nodes < spec.slurm.fewest_nodes:
        here = f"{quantity(len(devices), 'GPU')} here: {quantity(nodes, 'node')}"
        print_line(f"warning: {here}, not {spec.slurm.nodes}")
    shares = gpu_shares(nodes, devices)
    me, line = run_lock.this_process(None), ProgressLine(run_dir)
    with (
        release_on_disk_error(run_dir, me),
        stop_signals() as stops,
        closing(Agents(spec, run_dir, shares)) as agents,
    ):
        while True:
            plan = open_attempt(run_dir, me, ["localhost"] * len(shares))
            if plan is None:
                return None
            line.begin()
            watch(agents.start(plan), stops, line, spec.launch)
            agents.kill_orphans()
            names = [signal.Signals(number).name for number in stops]
            decision = close_attempt(run_dir, me, plan.attempt, names)
            if decision.action is not Action.RETRY:
                return decision
            if wait_for_stop(stops, retry_delay_s(read_attempts(run_dir))):
                return give_up(run_dir, me)


def wait_for_stop(stops: Stops, seconds: float) -> bool:
    """Wait before a retry; True if a stop signal came."""
    deadline = time.monotonic() + seconds
    while not stops and (left := deadline - time.monotonic()) > 0:
        stops.wait(left)
    return bool(stops)


def give_up(run_dir: RunDir, me: run_lock.Owner) -> Decision:
    """Hold a run that was stopped between two attempts; returns that decision."""
    reason = "stopped on request"
    end_between_attempts(run_dir, Action.HOLD, Cause.INTERRUPTED, reason)
    run_lock.release(run_dir, me)
    notify(run_dir, Spec.read(run_dir.spec), records.read(Result, run_dir.result))
    return Decision(Action.HOLD, Cause.INTERRUPTED, reason)


def visible_gpus() -> list[str]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES allows, else all of this machine.

    Behind ROCR_VISIBLE_DEVICES the others are counted from 0 again. Source: ROCm, GPU isolation.
    """
    name, devices = gpus.visible(os.environ) or ("", [])
    if name.startswith(("CUDA", "HIP")):
        return devices
    return [str(index) for index in range(len(devices) if name else gpus.of_machine())]


def num_agents(spec: Spec, num_gpus: int) -> int:
    """Return how many agents this machine runs: one per node of the spec, at most one per GPU.

    Of a range without GPUs, as many as fit.
    """
    slurm = spec.slurm
    if num_gpus:
        return min(slurm.most_nodes, num_gpus)
    fit = (os.cpu_count() or 1) * MAX_RANKS_PER_CORE // spec.nproc_per_node
    return max(slurm.fewest_nodes, min(slurm.most_nodes, fit))


def check_machine(spec: Spec, num_gpus: int) -> None:
    """Raises: LocalError for a spec that this machine, with so many GPUs, cannot run."""
    nodes = num_agents(spec, num_gpus)
    nproc = spec.nproc_per_node
    cores = os.cpu_count() or 1
    share = num_gpus // max(1, nodes)
    if spec.slurm.num_gpus > share:
        raise _too_few_gpus(spec, num_gpus, share)
    if not num_gpus and nodes * nproc > cores * MAX_RANKS_PER_CORE:
        raise LocalError(
            f"{quantity(nodes, 'node')} with {quantity(nproc, 'rank')} are too many "
            f"for the {quantity(cores, 'core')} here\n"
            f"  hint: add {installation.override('slurm.nodes=2')}"
        )
    prefix = spec.launch.command_prefix
    if prefix and not spec.setup and shutil.which(prefix[0]) is None:
        raise LocalError(
            f"launch.command_prefix: {prefix[0]} is not on PATH here\n"
            f"  hint: add {installation.override('launch.command_prefix=[]')}"
        )


def _too_few_gpus(spec: Spec, num_gpus: int, share: int) -> LocalError:
    """Return the error where this machine has `share` GPUs for each node of the spec."""
    here = f"only {quantity(num_gpus, 'GPU')} is" if num_gpus == 1 else f"only {num_gpus} GPUs are"
    here = here if num_gpus else "no GPU is"
    limit = gpus.limiting_variable(os.environ, spec.slurm.num_gpus)
    return LocalError(
        f"{spec.slurm.gpus_are}, but {here} visible here{f': {limit}' if limit else ''}\n"
        f"  hint: add {installation.override(f'slurm.gpus_per_node={share}')}"
    )


def gpu_shares(nodes: int, devices: list[str]) -> list[str | None]:
    """Return CUDA_VISIBLE_DEVICES of each agent; None without GPUs."""
    share = len(devices) // nodes
    cuts = [devices[rank * share : (rank + 1) * share] for rank in range(nodes)]
    return [",".join(cut) if devices else None for cut in cuts]


class Agents:
    """The node agents of an attempt."""

    def __init__(self, spec: Spec, run_dir: RunDir, shares: Sequence[str | None]) -> None:
        """`shares`: CUDA_VISIBLE_DEVICES of each agent; None without GPUs."""
        self._spec, self._run_dir, self._shares = spec, run_dir, shares
        self._mark = ""  # of the attempt's agents
        adopt_orphans(True)

    def kill_orphans(self) -> None:
        """Kill what the agents of the ended attempt left, as Slurm does at the end of a step.

        The ranks of a killed agent end a moment after it. Until then they write to the run
        directory, which the next attempt uses, too.
        """
        orphans: set[int] = set()
        deadline = time.monotonic() + ORPHANS_WAIT_S
        while orphans := orphans | self._adopted():
            if time.monotonic() > deadline:
                pids = ", ".join(map(str, sorted(orphans)))
                print_line(f"warning: processes of this run were killed, but still exist: {pids}")
                return
            for pid in list(orphans):
                with contextlib.suppress(PermissionError):  # it became another user's
                    os.kill(pid, signal.SIGKILL)
                if os.waitpid(pid, os.WNOHANG)[0] == pid:
                    orphans.remove(pid)
            time.sleep(0.01)

    def _adopted(self) -> set[int]:
        """Return adopted processes that have a mark or are ending: those lose it before the end."""
        variable, pids = f"{MARK}={self._mark}".encode(), children(os.getpid())
        return {pid for pid in pids if has_ended(pid) or variable in procfs.environment(pid)}

    def start(self, plan: AttemptPlan) -> list[subprocess.Popen[bytes]]:
        """Start an agent for each node, with its output and torchrun's in job.log."""
        command = srun_step.agent_command(
            self._run_dir, self._spec, plan.attempt, plan.rdzv_endpoint
        )
        agents = []
        self._mark = os.urandom(8).hex()
        for rank, devices in enumerate(self._shares):
            # In an allocation its GPUs are shared out among the agents.
            env = {name: text for name, text in os.environ.items() if name not in gpus.GIVEN}
            env |= {"KIT_NODE_RANK": str(rank), "PYTHONUNBUFFERED": "1"}
            env[MARK] = self._mark
            if devices is not None:
                env["CUDA_VISIBLE_DEVICES"] = devices
            with open(self._run_dir.job_log, "ab") as log:
                agent = subprocess.Popen(
                    command,
                    cwd=self._run_dir.code,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    preexec_fn=die_with_parent,
                )
            agents.append(agent)
        return agents

    def close(self) -> None:
        """Adopt no orphans any more."""
        adopt_orphans(False)


def watch(
    agents: list[subprocess.Popen[bytes]], stops: Stops, line: ProgressLine, launch: Launch
) -> None:
    """Show progress until all agents have ended; forward the first stop, kill at the second."""
    forwarded = 0
    kill_at = math.inf
    while None in (codes := [agent.poll() for agent in agents]):
        stops.wait(POLL_S)
        # Only a Ctrl-C after the announcement kills: a closing terminal sends several signals.
        is_kill = (forwarded and signal.SIGINT in stops[forwarded:]) or time.monotonic() > kill_at
        if stops and not forwarded:
            forwarded = len(stops)
            signal_agents(agents, signal.SIGTERM)
            line.note(format_stop(launch))
            if stop_signal(launch) is None and signal.SIGINT not in stops:
                # A cancel, or a closed terminal: no second Ctrl-C can come.
                kill_at = time.monotonic() + KILL_WAIT_S
        elif is_kill or any(codes):
            # As by srun --kill-on-bad-exit: the other agents would wait for the failed one.
            signal_agents(agents, signal.SIGKILL)
            if is_kill:
                line.note("killing")
                forwarded, kill_at = len(stops), math.inf
        line.show()
    line.end()


def format_stop(launch: Launch) -> str:
    """Return what the first Ctrl-C does, as the user reads it."""
    if launch.is_trainer:
        return "stopping after this step and saving (Ctrl-C again kills)"
    number = stop_signal(launch)
    if number is not None:
        return f"asked your script to stop: {number.name}, KIT_STOP_FILE (Ctrl-C again kills)"
    return (
        "asked your script to stop by KIT_STOP_FILE alone: launch.stop_signal is none. "
        "If it does not read that file, Ctrl-C again kills it"
    )


def signal_agents(agents: list[subprocess.Popen[bytes]], number: int) -> None:
    """Send a signal to each agent that still runs."""
    for agent in agents:
        if agent.poll() is None:
            agent.send_signal(number)


class Stops(list[int]):
    """The stop signals that came, in their order."""

    def __init__(self, wakeup: socket.socket) -> None:
        """`wakeup`: gets a byte at each signal."""
        super().__init__()
        self._wakeup = wakeup

    def note(self, number: int, _: FrameType | None) -> None:
        """Handle a signal: the end of a child process wakes `wait`, and is no stop."""
        if number != signal.SIGCHLD:
            self.append(number)

    def wait(self, seconds: float) -> None:
        """Wait for a signal, or for the end of a child process."""
        select.select([self._wakeup], [], [], seconds)
        with contextlib.suppress(BlockingIOError):
            self._wakeup.recv(4096)


@contextmanager
def stop_signals() -> Iterator[Stops]:
    """Run a block in which SIGINT, SIGTERM and SIGHUP are only appended to the list it gives."""
    wakeup, write_end = socket.socketpair()
    with wakeup, write_end:
        wakeup.setblocking(False)
        write_end.setblocking(False)
        stops = Stops(wakeup)
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
        before = [signal.signal(number, stops.note) for number in numbers]
        signal.set_wakeup_fd(write_end.fileno(), warn_on_full_buffer=False)
        try:
            yield stops
        finally:
            signal.set_wakeup_fd(-1)
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)
