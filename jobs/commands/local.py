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
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from .. import hooks
from ..attempt import attempts, srun_step
from ..attempt.decision import Cause
from ..attempt.reasons import hold_hint, remedy_of
from ..base import gpus, installation
from ..base.console import display_path, print_line, quantity
from ..base.environment import Program
from ..base.errors import UserError
from ..base.prctl import adopted_orphans, begin_child
from ..base.procfs import children
from ..base.stop_signals import AWAITED, StopSignals
from ..contract import records
from ..contract.kinds import Kind
from ..contract.records.ended import read_attempts
from ..contract.records.nodes import AttemptPlan, Chosen
from ..contract.records.training import Result
from ..contract.rundir import RunDir
from ..contract.spec import Launch, Spec
from ..node.torchrun import stop_signal
from ..runs import run_lock
from . import local_lines

POLL_S = 0.2
MAX_RANKS_PER_CORE = 4
ORPHANS_WAIT_S = 10  # for killed processes to end; one that waits for a disk may need longer
KILL_WAIT_S = 30  # for a script that gets no signal; as long as Slurm's own KillWait


def run_here(run_dir: RunDir) -> int:
    """Run in the foreground and print how it ended; returns the exit code."""
    code, of_run = run(run_dir), read_attempts(run_dir)
    if code == 0:
        print(local_lines.format_end(run_dir, of_run))
        report = installation.command("report", run_dir.run_id)
        if of_run[-1].why.kind is Kind.SEPARATE_TRAININGS:
            print(of_run[-1].reason)
        folder = run_dir.path if Spec.read(run_dir.spec).launch.is_trainer else run_dir.work
        print(f"run directory {display_path(folder)}, next: {report}")
        return 0
    why = of_run[-1].why
    if of_run[-1].cause is Cause.INTERRUPTED:
        _, resume = remedy_of(why, run_dir.run_id)
        print(f"{local_lines.format_stopped(run_dir)}; next: {resume}", file=sys.stderr)
        return 130
    # The reason of the failure stands in the attempt's own line, just above.
    result = records.read(Result, run_dir.result)
    step = None if result is None else result.global_step
    where = "" if step is None else f" after step {step}"
    print(f"stopped{where}: {of_run[-1].cause}, see above", file=sys.stderr)
    print(f"next: {hold_hint(why, run_dir.run_id)}", file=sys.stderr)
    return code


def run(run_dir: RunDir) -> int:
    """Run attempts until the run is done, stopped or held; returns 0 if it is complete.

    Raises: UserError, FailedError.
    """
    spec = Spec.read(run_dir.spec)
    devices = visible_gpus()
    check_machine(spec, len(devices))
    nodes = num_agents(spec, len(devices))
    if nodes < spec.slurm.fewest_nodes:
        here = f"{quantity(len(devices), 'GPU')} here: {quantity(nodes, 'node')}"
        print_line(f"warning: {here}, not {spec.slurm.nodes}")
    share = len(devices) // nodes
    shares = [",".join(devices[n * share : (n + 1) * share]) or None for n in range(nodes)]
    if run_dir.job_log.is_symlink():  # of a job of plain sbatch: jobs.attempt.open
        run_dir.job_log.unlink()

    def run_step(plan: AttemptPlan, _: Chosen) -> int:
        agents = start_agents(run_dir, spec, plan, shares)
        with hooks.beside(run_dir, plan):
            watch(agents, stops, spec.launch, lines)
        kill_orphans()
        return 0

    me, lines = run_lock.this_process(None), local_lines.ProgressLines(run_dir)
    with run_lock.release_on_disk_error(run_dir, me), stop_signals() as stops, adopted_orphans():
        log = "" if spec.launch.is_trainer else f": {display_path(run_dir.rank_log(0))}"
        print_line(f"{installation.command('logs', run_dir.run_id)} shows the output{log}")
        where = attempts.Allocation(["localhost"] * nodes, run_step)
        return attempts.run(run_dir, me, where, stops)


def visible_gpus() -> list[str]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES allows, else all of this machine.

    Behind ROCR_VISIBLE_DEVICES the others are counted from 0 again. Source: ROCm, GPU isolation.
    """
    name, devices = gpus.visible(os.environ)
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
    """Raises: UserError for a spec that this machine, with so many GPUs, cannot run."""
    nodes, cores = num_agents(spec, num_gpus), os.cpu_count() or 1
    share = num_gpus // max(1, nodes)
    if spec.slurm.num_gpus > share:
        limit = gpus.limiting_variable(os.environ, spec.slurm.num_gpus)
        shown = f"{quantity(num_gpus, 'GPU')}{f': {limit}' if limit else ''}"
        what = f"{spec.slurm.gpus_are}, but this machine shows {shown}"
        raise UserError(what, f"add {installation.override(f'slurm.gpus_per_node={share}')}")
    most = cores * MAX_RANKS_PER_CORE
    if not num_gpus and nodes * spec.nproc_per_node > most:
        change = f"slurm.nodes={most // spec.nproc_per_node}"
        if spec.nproc_per_node > most:
            change = "slurm.nodes=1 " * (nodes > 1) + f"launch.nproc_per_node={most}"
        ranks = f"{quantity(nodes, 'node')} with {quantity(spec.nproc_per_node, 'rank')}"
        what = f"{ranks} are too many for the {quantity(cores, 'core')} here"
        raise UserError(what, f"add {installation.override(change)}")


def start_agents(
    run_dir: RunDir, spec: Spec, plan: AttemptPlan, shares: Sequence[str | None]
) -> list[subprocess.Popen[bytes]]:
    """Start an agent for each node, with its output and torchrun's in job.log.

    shares: CUDA_VISIBLE_DEVICES of each agent; None without GPUs.
    """
    command = srun_step.agent_command(run_dir, spec, plan.attempt)
    command, inherited = hooks.launch_command(Program.LOCAL, command, os.environ, spec)
    agents = []
    for rank, devices in enumerate(shares):
        env = inherited | {"KIT_NODE_RANK": str(rank), "PYTHONUNBUFFERED": "1"}
        if devices is not None:
            env["CUDA_VISIBLE_DEVICES"] = devices
        with open(run_dir.job_log, "ab") as log:
            agent = subprocess.Popen(
                command,
                cwd=run_dir.code,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=begin_child,
            )
        agents.append(agent)
    return agents


def kill_orphans() -> None:
    """Kill what the agents of the ended attempt left, as Slurm does at the end of a step.

    The ranks of a killed agent end a moment after it. Until then they write to the run directory,
    which the next attempt uses, too.
    """
    orphans: set[int] = set()
    deadline = time.monotonic() + ORPHANS_WAIT_S
    while orphans := orphans | {*children(os.getpid())}:
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


def watch(
    agents: list[subprocess.Popen[bytes]],
    stops: StopSignals,
    launch: Launch,
    lines: local_lines.ProgressLines,
) -> None:
    """Show the progress until all have ended; forward the first stop, kill at a Ctrl-C after it."""
    is_stopping, kill_at = False, math.inf
    while None in (codes := [agent.poll() for agent in agents]):
        came = stops.wait(POLL_S)
        # Only a Ctrl-C after the announcement kills: a closing terminal sends several signals.
        is_kill = (is_stopping and "SIGINT" in came) or time.monotonic() > kill_at
        if stops.names and not is_stopping:
            is_stopping = True
            for agent in agents:
                agent.send_signal(signal.SIGTERM)  # does nothing for one that has ended
            print_line(local_lines.format_stop(launch))
            if stop_signal(launch) is None and "SIGINT" not in stops.names:
                # A cancel, or a closed terminal: no second Ctrl-C can come.
                kill_at = time.monotonic() + KILL_WAIT_S
        elif is_kill or any(codes):
            # As by srun --kill-on-bad-exit: the other agents would wait for the failed one.
            for agent in agents:
                agent.kill()
            if is_kill:
                print_line("killing")
                kill_at = math.inf
        elif not stops.names:
            lines.show()


@contextmanager
def stop_signals() -> Iterator[StopSignals]:
    """Run a block in which AWAITED are blocked, and read by what it gives."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
    stops = StopSignals(AWAITED)
    try:
        yield stops
    finally:
        stops.wait(0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
