"""How an attempt ended, by what its ranks and agents wrote: pure functions of values."""

import math
import signal
from collections.abc import Sequence

from ..base.console import quantity
from ..base.errors import HINT
from ..base.log_text import first_line
from ..base.stop_signals import STOP_SIGNALS
from ..contract.checkpoint.names import checkpoint_step, is_newer
from ..contract.kinds import OF_MEMORY, Kind
from ..contract.known_causes import REPEATED, UNSIGNED, known_cause
from ..contract.records.ended import LOST, Evidence
from ..contract.records.nodes import AgentRecord, RankError
from .facts import AttemptFacts, first_error

SKEW_S = 2.0  # what the clocks of two nodes may differ by


def rank_evidence(
    facts: AttemptFacts, job_state: str = LOST, srun_exit: int = 0, stops: tuple[str, ...] = ()
) -> Evidence:
    """Return the evidence in the ranks' and agents' files.

    job_state: all known from Slurm; LOST of an attempt that its killed batch script did not record.
    srun_exit: 0 where it is not known. stops: signals that the batch script got.
    """
    plan, nodes = facts.plan, facts.of_nodes
    failed = first_error(nodes.errors)
    killed = [agent.host for agent in nodes.known_agents if agent.oom_kill]
    signals = warning_signals(facts, failed)
    # srun ended the other nodes because of it.
    if nodes.agent_errors or has_agent_died(nodes.agents, srun_exit):
        signals = tuple(name for name in signals if name != "SIGTERM")
    signals = signals or stops or stop_signals_at_start(facts, srun_exit)
    unfinished = unfinished_steps(facts)
    outcome = outcome_of(facts, signals, unfinished is not None)
    of_agent = format_agent_errors(nodes.agent_errors)
    error = of_agent or error_of(facts, failed, killed)
    if error is None and outcome is None:
        error = unfinished
        if error is None:
            error = of_agent = format_agent_exits(facts)
    cause = None if of_agent is None else known_cause(of_agent)
    is_of_prefix = bool(nodes.last_words) and not nodes.known_agents
    is_of_spec = is_of_prefix or (of_agent is not None and ": setup: " in first_line(of_agent))
    kind = cause or (Kind.SPEC_MISTAKE if is_of_spec else None)
    if cause is None and failed is not None and failed.kind is not Kind.UNKNOWN:
        kind = failed.kind
    would_repeat = any(agent.error is not None for agent in nodes.known_agents)
    if killed and kind not in OF_MEMORY:  # perhaps the reason of what the ranks recorded
        kind = Kind.OUT_OF_MEMORY
    return Evidence(
        outcome=outcome,
        job_state=job_state,
        job_reason="",
        signals=signals,
        is_preempted=False,
        # A different one is not enough: after a quarantine an older one is the newest.
        has_progress=is_newer(facts.saved.checkpoint, plan.checkpoint if plan else None),
        error=error,
        would_repeat=cause in REPEATED or (failed.would_repeat if failed else would_repeat),
        kind=kind,
    )


def error_of(facts: AttemptFacts, failed: RankError | None, killed: list[str]) -> str | None:
    """Return why the attempt failed, in one line; None if neither rank nor kernel has a reason."""
    # A rank killed for memory writes no error record, and its peers only see a closed connection.
    if killed:
        return "; ".join(_out_of_memory(facts, host) for host in killed)
    if failed is None:
        return None
    if failed.caused_by_peer and (ends := facts.of_nodes.ends):
        return f"{ends}: {format_error(failed)}"
    if failed.caused_by_peer and facts.of_nodes.gone:
        gone = ", ".join(f"rank {rank} on {host}" for rank, host in facts.of_nodes.gone)
        return f"{gone} died without an error record (SIGKILL or a crash of the interpreter)"
    return format_error(failed)


def _out_of_memory(facts: AttemptFacts, host: str) -> str:
    """Return what the kernel killed on a node for want of memory: which rank, and the limit."""
    ended = {each.rank: each.exit_code for each in facts.of_nodes.errors if each.host == host}
    ranks = [f"rank {rank}" for rank, code in sorted(ended.items()) if code == -signal.SIGKILL]
    limits = (x.memory_limit_mib for x in facts.of_nodes.known_agents if x.host == host)
    limit = next(limits, None)
    what = ", ".join(ranks) or "a process"
    of_limit = f": the job may use {limit} MiB of the node (slurm.mem)" if limit else ""
    return f"{host}: the kernel killed {what} for want of memory{of_limit}"


def format_agent_errors(errors: Sequence[str]) -> str | None:
    """Return the first reason for which an agent did not start torchrun; None where all did."""
    if not errors:
        return None
    first, *others = errors[0].splitlines()
    if len(errors) > 1:
        first += f"; {quantity(len(errors) - 1, 'other node')} failed as well"
    return "\n".join([first, *others])


def format_agent_exits(facts: AttemptFacts) -> str | None:
    """Return how the agents ended, in one line; None where torchrun failed on no node.

    An agent that started no torchrun has the reason; the ends of the others follow from it. Where
    torchrun failed on one node, its end on the others is a consequence, which may have no record.
    """
    agents = facts.of_nodes.known_agents
    if errors := [each.error for each in agents if each.error]:
        return errors[0]
    ended = [
        f"{each.host}: torchrun exit {each.torchrun_exit}" for each in agents if each.torchrun_exit
    ]
    ended += [
        f"{node}: no record (killed)"
        for node, agent in zip(facts.nodes, facts.of_nodes.agents, strict=True)
        if agent is None or (agent.torchrun_exit is None and not ended)
    ]
    words = [words for _, words in facts.of_nodes.last_words]
    if words and not agents:
        return f"{facts.nodes[0]}: {words[0]}"
    if UNSIGNED in words and facts.plan is not None:
        return f"the rendezvous at {facts.plan.head.endpoint} {UNSIGNED}"
    return ": ".join(filter(None, ["; ".join(ended), *words])) or None


def format_error(failed: RankError) -> str:
    """Return a rank's error without its hint and traceback, which job.log shows.

    `rank 1 on n2: ValueError: x`, or `rank 1 on n2 exited with code 1: ValueError: x` where
    torchrun saw its end. The words of an error may have several lines.
    """
    words = failed.error.strip().partition(HINT)[0]
    return f"rank {failed.rank} on {failed.host}{': ' if failed.exit_code is None else ' '}{words}"


def outcome_of(facts: AttemptFacts, signals: tuple[str, ...], is_unfinished: bool) -> str | None:
    """Return how the training ended: completed, stopped, or None where it did neither.

    A complete run stays complete, also where a scratch purge has removed its outcome.json. The
    trainer always writes outcome.json. A user's script may write none: exit code 0 of all ranks is
    its end, but not after a stop (a further attempt finds out in a moment if all is done), nor
    before the last step that it has announced.
    """
    if facts.is_completed:
        return "completed"
    if facts.outcome.status is not None or not exits_are_clean(facts):
        # A torchrun that fails by itself sends SIGTERM to its ranks.
        is_failure = facts.of_nodes.last_words and not signals
        return None if is_failure and facts.outcome.status == "stopped" else facts.outcome.status
    if signals or facts.of_nodes.is_stop_requested:
        return "stopped"
    return None if is_unfinished else "completed"


def exits_are_clean(facts: AttemptFacts) -> bool:
    """Return whether the ranks are a user's script, and each node's torchrun exited with 0."""
    exits = [agent.torchrun_exit for agent in facts.of_nodes.known_agents]
    is_clean = bool(exits) and exits == [0] * len(facts.nodes)
    return is_clean and not facts.spec.launch.is_trainer


def unfinished_steps(facts: AttemptFacts) -> str | None:
    """Return the text about steps that a script announced and exited with 0 before; None without.

    A report may be a second old; a checkpoint may be newer.
    """
    if not exits_are_clean(facts):
        return None
    saved = None if facts.saved.checkpoint is None else checkpoint_step(facts.saved.checkpoint)
    done = max(facts.step or 0, saved or 0)
    total = None if facts.progress is None else facts.progress.total
    if total is None or done >= total:
        return None
    return (
        f"exited with code 0 at step {done} of {total}; "
        "if that was the end, call completed() of kit_stop.py"
    )


def has_agent_died(agents: Sequence[AgentRecord | None], srun_exit: int) -> bool:
    """Return whether an agent died without having received a stop signal.

    srun then sends SIGTERM to the other agents, perhaps before any rank has failed. An agent that
    a stop signal killed while it started was warned like the others. `srun_exit`: 0: unknown.
    """
    died = any(a is not None and a.end is None and not a.signals for a in agents)
    return died or (None in agents and (0 < srun_exit < 128 or srun_exit > 192))


def warning_signals(facts: AttemptFacts, failed: RankError | None) -> tuple[str, ...]:
    """Return the stop signals that agents received before anything failed, in order.

    After the agent of one node has failed, srun sends SIGTERM to the others: that is a consequence
    of the failure and no warning.
    """
    agents = facts.of_nodes.known_agents
    failures = [(a.end, a.host) for a in agents if a.has_failed and a.end is not None]
    if failed is not None:
        failures.append((failed.time, failed.host))
    first, host = min(failures, default=(math.inf, ""))
    arrived = sorted(
        (each.t, each.signal)
        for agent in agents
        for each in agent.signals
        if each.t < (first if agent.host == host else first - SKEW_S)
    )
    return tuple(dict.fromkeys(name for _, name in arrived))


def stop_signals_at_start(facts: AttemptFacts, srun_exit: int) -> tuple[str, ...]:
    """Return the stop signal that killed an agent in its start, before it could record the signal.

    Only srun's exit code shows it, and only where no agent has failed: after a failure srun itself
    kills the other agents. Source: srun(1), exit values.
    """
    any_failed = any(agent.has_failed for agent in facts.of_nodes.known_agents)
    is_missed = None in facts.of_nodes.agents and not any_failed and not facts.of_nodes.agent_errors
    died_of = [number.name for number in STOP_SIGNALS if srun_exit == 128 + number]
    return tuple(died_of) if is_missed else ()


def is_training_complete(facts: AttemptFacts) -> bool:
    """Return whether the run is complete, also if its killed batch script did not record it."""
    if facts.is_completed:
        return True
    return facts.is_unrecorded and rank_evidence(facts).outcome == "completed"
