"""The srun step of an attempt: the command of its agents, and its end in bounded time.

srun waits for the agent of every node. For the agent on a lost node it waits until Slurm marks that
node DOWN (SlurmdTimeout, 300 s by default). An srun that is killed leaves its srun step behind, and
that step must be gone before the next one starts.
"""

import contextlib
import math
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..base import installation
from ..base.console import print_line
from ..base.procfs import children
from ..base.stop_signals import STOP_SIGNALS, StopSignals, send
from ..contract import records
from ..contract.records.nodes import AgentRecord, AttemptPlan, read_agents
from ..contract.records.queued import SlurmSite
from ..contract.rundir import RunDir
from ..contract.spec import Spec
from ..node.interfaces import is_reachable
from ..runs import run_lock
from ..runs.facts import AttemptFacts
from ..slurm import cluster
from ..slurm.job import restart_count, run_scancel, show_job, signal_steps

# Once an agent has failed, srun ends the others: SIGTERM, and SIGKILL after KillWait (30 s). A
# command prefix may have work to do, too.
END_LIMIT_S = 60
KILL_AFTER_S = 5
POLL_S = 0.1
# Each read opens a file of every node on a file system that all jobs share.
READ_INTERVAL_S = 5.0
ASK_INTERVAL_S = 5.0
PASS_ON_INTERVAL_S = 2.0


def block_signals_prefix() -> list[str]:
    """Return a command prefix that blocks stop signals before the command itself starts.

    Python needs tens of milliseconds until its first line runs, and seconds on a busy file system.
    Returns [] if env(1) cannot block signals (coreutils before 8.31).
    """
    names = ",".join(number.name.removeprefix("SIG") for number in STOP_SIGNALS)
    prefix = ["env", f"--block-signal={names}"]
    try:
        tried = subprocess.run([*prefix, "true"], check=False, stderr=subprocess.DEVNULL)
    except OSError:
        return []
    return prefix if tried.returncode == 0 else []


def watch(
    run_dir: RunDir,
    plan: AttemptPlan,
    srun: subprocess.Popen[Any],
    stops: StopSignals,
    get_lost: Callable[[], Sequence[str]],
) -> None:
    """Wait for srun, kill it if it does not end in time, and pass on what only this process got.

    That is: END_LIMIT_S after an agent failed or all ended, half of KillWait after the end of the
    time limit, or as soon as another attempt owns the run, or get_lost returns a node.

    At its time limit Slurm sends this process SIGTERM, and kills it KillWait later. Slurm never
    requeues such a job. So the ranks get half of KillWait, and the decision gets the other half.
    """
    job_id, to_agents = plan.job_id, _PassOn(run_dir, plan)
    deadline, why, has_sigterm, next_ask, next_read = math.inf, "", False, 0.0, 0.0
    while srun.poll() is None:
        has_sigterm = "SIGTERM" in stops.wait(POLL_S) or has_sigterm
        now = time.monotonic()
        with contextlib.suppress(OSError, records.RecordError):  # the next turn tries again
            to_agents.pass_on(stops.names)
            if has_sigterm and now > next_ask:
                # Many signals at once cause one call of Slurm.
                next_ask, has_sigterm = now + ASK_INTERVAL_S, False
                job = show_job(job_id)
                if job is not None and (job.state, job.reason) == ("COMPLETING", "TimeLimit"):
                    site = records.read(SlurmSite, run_dir.site) or SlurmSite()
                    limit = now + site.kill_wait_s / 2
                    deadline, why = min((deadline, why), (limit, "at the end of the time limit"))
            if now > next_read:
                next_read = now + READ_INTERVAL_S
                if run_lock.is_superseded(run_dir, job_id, plan.attempt):
                    deadline, why = 0.0, "although another attempt owns the run"
                elif not why and (why := _why_to_end(run_dir, plan)):
                    deadline = now + END_LIMIT_S
            if lost := get_lost():
                deadline, why = 0.0, f"because {', '.join(lost)} does not answer"
        if now > deadline:
            _end(run_dir, plan, srun.pid, why)
            return


def _end(run_dir: RunDir, plan: AttemptPlan, srun_pid: int, why: str) -> None:
    """End an srun that waits for too long; why: continues the line that is printed.

    If Slurm has started the job again meanwhile, this srun must ask slurmctld for nothing: its
    request would end the srun step of the new start, which has the same id.
    """
    print_line(f"attempt {plan.attempt}: srun is ended {why}")
    with contextlib.suppress(OSError, records.RecordError):
        has_failed = any(agent.has_failed for agent in read_agents(run_dir, plan.attempt))
        if has_failed and not run_lock.is_superseded(run_dir, plan.job_id, plan.attempt):
            # srun then kills its step and ends, unless it waits for a lost node.
            send(signal.SIGTERM, [srun_pid])
            time.sleep(KILL_AFTER_S)
    # srun's child outlives srun and kills the step as soon as it reaches slurmctld. After a network
    # cut that may be the step of the job's next start, which has the same id. So the child is
    # killed, too, and first. `attempt.close` ends what is left of the step.
    send(signal.SIGKILL, [*children(srun_pid), srun_pid])


class _PassOn:
    """The way of a stop signal of this process, such as of `--signal=B:USR1@N`, to the agents.

    Slurm sends it to the batch script alone. scancel signals the steps of a job, not its batch
    script. srun gets no signal: some versions kill their step then, before an agent can record it.
    """

    def __init__(self, run_dir: RunDir, plan: AttemptPlan) -> None:
        self._run_dir, self._job_id, self._attempt = run_dir, plan.job_id, plan.attempt
        self._is_passed_on = False
        self._next_try: float | None = None

    def pass_on(self, names: Sequence[str]) -> None:
        """Send the first signal to the agents, unless they got one themselves; repeat a failure.

        A job that ends, or that Slurm has started again, is asked for nothing: its steps may be
        those of the new start.
        """
        if not names or self._is_passed_on:
            return
        now = time.monotonic()
        if self._next_try is None:  # agents that got the signal, too, record it meanwhile
            self._next_try = now + PASS_ON_INTERVAL_S / 2
        if now < self._next_try:
            return
        self._next_try = now + PASS_ON_INTERVAL_S
        agents = read_agents(self._run_dir, self._attempt)
        if not agents:  # they are starting
            return
        if any(agent.signals for agent in agents):
            self._is_passed_on = True
        elif not run_lock.is_superseded(self._run_dir, self._job_id, self._attempt):
            job = show_job(self._job_id)
            is_ours = job is not None and job.restarts == restart_count()
            if job is not None and is_ours and job.state == "RUNNING":
                what = f"the agents get {names[0]} of the batch script, too"
                print_line(f"attempt {self._attempt}: {what}")
                self._is_passed_on = signal_steps(self._job_id, names[0])


def _why_to_end(run_dir: RunDir, plan: AttemptPlan) -> str:
    """Return why srun must end soon by the agents' records; "" where it may run on.

    When one agent has failed, the agents of the other nodes wait for it. When all agents have
    ended, the step is over, but srun waits for ever for a node whose slurmstepd was killed
    (Slurm 22.05).
    """
    agents = read_agents(run_dir, plan.attempt)
    if any(agent.has_failed for agent in agents):
        return f"{END_LIMIT_S} s after a failure"
    num_ended = len([agent for agent in agents if agent.end is not None])
    return f"{END_LIMIT_S} s after every agent ended" if num_ended == len(plan.nodes) else ""


def end_leftover(job_id: str, left: Mapping[str, AgentRecord | None]) -> None:
    """Cancel an srun step that is left after its srun ended.

    `left`: the nodes whose agents recorded no end, with their records. The step must be gone before
    the next one, which needs the same processors, can start.
    """
    # scancel without the name of a signal kills the whole step at once, and not the job.
    for step_id in {agent.step_id for agent in left.values() if agent is not None}:
        if step_id is not None and step_id.isdecimal():  # scancel takes a list, too
            run_scancel(f"{job_id}.{step_id}")


def unreachable_nodes(
    facts: AttemptFacts, nodes: Iterable[str], is_refusal_enough: bool = False
) -> tuple[str, ...]:
    """Return those of `nodes` whose slurmd does not answer, by `cluster.is_answering`."""
    port = (facts.site or SlurmSite()).slurmd_port
    # There are no agents yet for the next attempt.
    agents = dict(zip(facts.nodes, facts.of_nodes.agents, strict=False))
    known = {node: agent.address for node, agent in agents.items() if agent and agent.address}
    # The agent of a job with one node records a loopback address.
    hosts = {node: known[node] if is_reachable(known.get(node, "")) else node for node in nodes}
    # The name of a node may be unknown to DNS, or stand for loopback.
    if named := [node for node, host in hosts.items() if not is_reachable(host)]:
        of_slurm = cluster.node_addresses(named)
        hosts |= {node: address for node, address in of_slurm.items() if node in hosts}
    # Each node that does not answer takes seconds, and a switch may have cut off hundreds.
    with ThreadPoolExecutor(64) as pool:
        answers = pool.map(
            lambda host: cluster.is_answering(host, port, is_refusal_enough), hosts.values()
        )
        return tuple(node for node, is_up in zip(hosts, answers, strict=True) if not is_up)


def agent_command(run_dir: RunDir, spec: Spec, attempt: int) -> list[str]:
    """Return the command of an agent: agent.sh, and what that puts before `-m jobs.node`."""
    script = str(run_dir.kit / installation.NAME / "slurm/agent.sh")
    # Not in addition to the user's prefix: that program may have to receive the signals and pass
    # them on.
    prefix = spec.launch.command_prefix or block_signals_prefix()
    return ["bash", script, str(run_dir.path), str(attempt), *prefix, spec.interpreter]
