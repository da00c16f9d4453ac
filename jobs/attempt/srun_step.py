"""The srun step of an attempt: bounded in its end, and gone before the next one starts.

srun waits for every node's agent, and for one on a node that was lost until Slurm gives the node
up (SlurmdTimeout, 300 s by default). Killed itself, it leaves its step behind.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping

from jobs import records
from jobs.attempt import interpret, run_lock
from jobs.attempt.interpret import AttemptFacts
from jobs.console import say
from jobs.node.stop_signals import STOP_SIGNALS
from jobs.procfs import children
from jobs.records import AgentRecord, AttemptPlan, SlurmSite
from jobs.rundir import RunDir
from jobs.slurm import client
from jobs.spec import Spec

# Once an agent has failed, srun ends the others: SIGTERM, and SIGKILL after KillWait (30 s).
END_LIMIT_S = 60
# Once every agent has ended, srun needs a moment to collect its tasks.
ENDED_LIMIT_S = 40
# With a command prefix or options of the user, which may have work to do after the agent.
PREFIX_ENDED_LIMIT_S = 600
KILL_AFTER_S = 5
POLL_S = 0.5
LOOK_S = 5.0  # each time at a file of every node, on a disk that all jobs share
QUESTION_S = 30.0


def shield() -> list[str]:
    """A prefix for a command line that holds stop signals back before the command even starts.

    Python needs tens of milliseconds to its first line, and where a file system is busy seconds.
    [] where env(1) cannot do it (before coreutils 8.31).
    """
    names = ",".join(number.name.removeprefix("SIG") for number in STOP_SIGNALS)
    prefix = ["env", f"--block-signal={names}"]
    try:
        tried = subprocess.run([*prefix, "true"], check=False, stderr=subprocess.DEVNULL)
    except OSError:
        return []
    return prefix if tried.returncode == 0 else []


def watch(run_dir: RunDir, job_id: str, attempt: int, srun_pid: int) -> None:
    """Wait for srun to end; end it where it outlives a failed agent, all agents, or its attempt.

    A job that its time limit ends is never requeued, and its batch shell is killed KillWait after
    the SIGTERM that tells it so: half of that time is for the ranks, half for the decision. Where
    the job was started again elsewhere, srun's orders would be carried out on the step of that
    start, which has the same name, as soon as they reach slurmctld.
    """
    deadline, why, is_told, next_question, next_look = math.inf, "", False, 0.0, 0.0
    while _is_running(srun_pid):
        is_told = signal.sigtimedwait({signal.SIGTERM}, POLL_S) is not None or is_told
        now = time.monotonic()
        with contextlib.suppress(OSError):  # the disk may answer at the next look
            if is_told and now > next_question:
                is_due, is_told = _is_limit_due(run_dir, attempt), False
                next_question = now + QUESTION_S if is_due else 0.0  # a storm is one question
                if is_due and _is_over_limit(job_id):
                    limit = now + noted(run_dir).kill_wait_s / 2
                    deadline, why = min((deadline, why), (limit, "at the end of the time limit"))
            if now > next_look:
                next_look = now + LOOK_S
                if run_lock.is_superseded(run_dir, job_id, attempt):
                    deadline, why = 0.0, "though the run is another attempt's"
                elif not why:
                    limit_s, why = _bound_by_agents(run_dir, attempt)
                    deadline = now + limit_s
        if now > deadline:
            break
    else:
        return
    may_order = False
    with contextlib.suppress(OSError):
        waited_for = ", ".join(_unended(run_dir, attempt)) or "its step"
        say(f"attempt {attempt}: srun waits for {waited_for} {why}: ended")
        is_ours = not run_lock.is_superseded(run_dir, job_id, attempt)
        may_order = is_ours and has_failed(run_dir, attempt)
    if may_order:  # it kills its step, unless it waits for a lost node even then
        _signal(srun_pid, signal.SIGTERM)
        time.sleep(KILL_AFTER_S)
    # Its child, left alone, kills the step as soon as it reaches slurmctld: after a cut link that
    # may be the step of the job's next start, by the same name. What is left, `close` ends.
    for pid in (*children(srun_pid), srun_pid):
        _signal(pid, signal.SIGKILL)


def _bound_by_agents(run_dir: RunDir, attempt: int) -> tuple[float, str]:
    """Seconds that srun may still run by what the agents have recorded, and why; inf, "" if any.

    An agent that failed leaves its peers waiting. Once all agents have ended, the step is over;
    srun still waits for ever for a node whose slurmstepd was killed (Slurm 22.05).
    """
    if has_failed(run_dir, attempt):
        return END_LIMIT_S, f"{END_LIMIT_S} s after a failure"
    agents = records.read_agents(run_dir, attempt)
    plan = records.read(AttemptPlan, run_dir.attempt(attempt).plan)
    num_nodes = 0 if plan is None else len(plan.nodes)
    if num_nodes and len([agent for agent in agents if agent.end is not None]) == num_nodes:
        spec = Spec.read(run_dir.spec)
        has_prefix = bool(spec.launch.command_prefix or spec.slurm.srun_args)
        limit_s = PREFIX_ENDED_LIMIT_S if has_prefix else ENDED_LIMIT_S
        return limit_s, f"{limit_s} s after every agent ended"
    return math.inf, ""


def _is_limit_due(run_dir: RunDir, attempt: int) -> bool:
    """Whether the time limit may have come: it was warned of, or is over by what the plan knew."""
    agents = records.read_agents(run_dir, attempt)
    signals = {each.signal for agent in agents for each in agent.signals}
    plan = records.read(AttemptPlan, run_dir.attempt(attempt).plan)
    deadline = None if plan is None else plan.deadline
    return "SIGUSR1" in signals or (deadline is not None and time.time() > deadline)


def _is_over_limit(job_id: str) -> bool:
    """Whether Slurm is ending the job at its time limit."""
    job = client.show_job(job_id)
    return job is not None and (job.state, job.reason) == ("COMPLETING", "TimeLimit")


def has_failed(run_dir: RunDir, attempt: int) -> bool:
    """Whether an agent has ended without success."""
    return any(agent.torchrun_exit for agent in records.read_agents(run_dir, attempt))


def _unended(run_dir: RunDir, attempt: int) -> list[str]:
    """The nodes whose agent has recorded no end yet."""
    attempt_dir = run_dir.attempt(attempt)
    plan = records.read(AttemptPlan, attempt_dir.plan)
    agents = [
        (node, records.read(AgentRecord, attempt_dir.agent(rank)))
        for rank, node in enumerate(plan.nodes if plan else ())
    ]
    return [node for node, agent in agents if agent is None or agent.end is None]


def end_leftover(job_id: str, left: Mapping[str, AgentRecord | None]) -> None:
    """End what is left of a step whose srun is gone, by the records of its unended nodes.

    The next step begins when this one is gone: it needs the same processors, and srun waits.
    """
    # Without a signal's name scancel kills all of a step at once, and nothing of the job.
    for step_id in {agent.step_id for agent in left.values() if agent is not None} - {None}:
        client.cancel(f"{job_id}.{step_id}")


def silent(found: AttemptFacts, nodes: Iterable[str]) -> tuple[str, ...]:
    """Those of an attempt's nodes whose slurmd takes no connections."""
    port = (found.site or SlurmSite()).slurmd_port
    left = interpret.unended(found)
    places = {node: _place(node, left.get(node)) for node in nodes}
    return tuple(node for node, place in places.items() if not client.is_answering(place, port))


def _place(node: str, agent: AgentRecord | None) -> str:
    """Where a node is met from any other one; the agent of a one-node job has noted loopback."""
    address = agent.address if agent is not None and agent.address is not None else node
    return node if address.startswith("127.") else address


def noted(run_dir: RunDir) -> SlurmSite:
    """What the submit has noted of the site's Slurm; Slurm's own defaults where it could not."""
    return records.read(SlurmSite, run_dir.site) or SlurmSite()


def _is_running(pid: int) -> bool:
    return _signal(pid, 0)


def _signal(pid: int, number: int) -> bool:
    """Signal a process; False if it is gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def argv_from_spec(spec: Spec, cpus: str | None) -> list[str]:
    """The words of the step's srun command that depend on the spec; ddp.sbatch has all others.

    `cpus`: SLURM_CPUS_PER_TASK. srun does not inherit it since Slurm 22.05. Source: srun(1).
    """
    return [
        f"--cpus-per-task={cpus or spec.slurm.cpus_per_task}",
        *spec.slurm.srun_args,
        # Not around a wrap: it may be what has to take the signals and pass them on.
        *(spec.launch.command_prefix or shield()),
    ]
