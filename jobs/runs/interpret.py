"""What the files of an attempt mean: pure functions of the values that `fact_reader` reads."""

import math
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ..base.console import quantity
from ..base.errors import HINT, UserError
from ..base.log_text import first_line
from ..base.stop_signals import STOP_SIGNALS
from ..contract.checkpoint.names import checkpoint_step, is_newer
from ..contract.kinds import OF_MEMORY, Kind
from ..contract.known_causes import REPEATED, UNSIGNED, known_cause
from ..contract.records.ended import FINAL, LOST, Action, AttemptRecord, Evidence
from ..contract.records.nodes import AgentRecord, AttemptPlan, HangConclusion, RankError
from ..contract.records.queued import SlurmSite, Submission, Successor
from ..contract.records.timeline import Event
from ..contract.records.training import CodeSpan, Outcome, Progress, Result
from ..contract.spec import Spec

# The longest pause before a retry, and its start.
RETRY_S = 120.0
# What the clocks of two nodes may differ by.
SKEW_S = 2.0


@dataclass(frozen=True)
class NodeFacts:
    """What the agents and ranks of an attempt wrote."""

    # Of each node of the plan; None where it wrote none.
    agents: tuple[AgentRecord | None, ...] = ()
    agent_errors: tuple[str, ...] = ()  # why agents did not start torchrun, by node rank
    errors: tuple[RankError, ...] = ()  # see `causes`
    # (rank, host) of ranks that left neither an error record nor an end, where their peers only
    # lost a connection.
    gone: tuple[tuple[int, str], ...] = ()
    events: tuple[Event, ...] = ()  # rank 0's, of this attempt
    is_stop_requested: bool = False  # an agent created the stop file of this attempt
    # (host, last line) of each torchrun that failed, where no rank has a record.
    last_words: tuple[tuple[str, str], ...] = ()
    hang: HangConclusion | None = None

    @property
    def known_agents(self) -> list[AgentRecord]:
        """The records of those agents that wrote one."""
        return [agent for agent in self.agents if agent is not None]


class Saved(NamedTuple):
    """What lies in the folder of checkpoints."""

    checkpoint: str | None = None  # the newest one
    quarantined: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What the files of a run show beside those of agents and ranks, each file read once."""

    spec: Spec = Spec()  # the defaults where spec_error says why spec.json cannot be read
    spec_error: UserError | None = field(default=None, compare=False)
    submission: Submission = Submission()
    successor: Successor | None = None
    result: Result | None = None
    mark: str | None = None  # the text of `cancelled`: by which command, and which jobs
    progress: Progress | None = None
    saved: Saved = Saved()
    attempts: tuple[AttemptRecord, ...] = ()  # closed ones, oldest first
    attempt: int = 0  # the one of the plan; 0: there was none
    plan: AttemptPlan | None = None  # None: lost, or there was no such attempt

    @property
    def step(self) -> int | None:
        """The last finished optimizer step of the run, by progress.json."""
        return None if self.progress is None else self.progress.step

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes of the attempt, first node first."""
        return () if self.plan is None else self.plan.nodes

    @property
    def last(self) -> AttemptRecord | None:
        """Return the record of the newest attempt that was closed; None before the first."""
        return self.attempts[-1] if self.attempts else None

    @property
    def newest(self) -> int:
        """The number of the newest attempt, whose files or record a scratch purge may have deleted.

        0 before the first. It needs the facts of the newest attempt that has files.
        """
        return max([self.attempt, *(record.attempt for record in self.attempts)])


@dataclass(frozen=True, kw_only=True)
class AttemptFacts(RunFacts):
    """What the run directory has about an attempt and its run."""

    of_nodes: NodeFacts
    outcome: Outcome
    site: SlurmSite | None


def rank_evidence(
    facts: AttemptFacts, job_state: str = LOST, srun_exit: int = 0, stops: tuple[str, ...] = ()
) -> Evidence:
    """Return the evidence in the ranks' and agents' files.

    job_state: all known from Slurm; LOST of an attempt that its killed batch script did not record.
    srun_exit: 0 where it is not known. stops: signals that the batch script got.
    """
    failed = first_error(facts.of_nodes.errors)
    killed = [agent.host for agent in facts.of_nodes.known_agents if agent.oom_kill]
    signals = warning_signals(facts, failed)
    # srun ended the other nodes because of it.
    if facts.of_nodes.agent_errors or has_agent_died(facts.of_nodes.agents, srun_exit):
        signals = tuple(name for name in signals if name != "SIGTERM")
    signals = signals or stops or stop_signals_at_start(facts, srun_exit)
    unfinished = unfinished_steps(facts)
    outcome = outcome_of(facts, signals, unfinished is not None)
    of_agent = format_agent_errors(facts.of_nodes.agent_errors)
    error = of_agent or error_of(facts, failed, killed)
    if error is None and outcome is None:
        error = unfinished
        if error is None:
            error = of_agent = format_agent_exits(facts)
    cause = None if of_agent is None else known_cause(of_agent)
    is_of_prefix = bool(facts.of_nodes.last_words) and not facts.of_nodes.known_agents
    is_of_spec = is_of_prefix or (of_agent is not None and ": setup: " in first_line(of_agent))
    kind = cause or _named_kind(failed) or (Kind.SPEC_MISTAKE if is_of_spec else None)
    if killed and kind not in OF_MEMORY:  # perhaps the reason of what the ranks recorded
        kind = Kind.OUT_OF_MEMORY
    return Evidence(
        outcome=outcome,
        job_state=job_state,
        job_reason="",
        signals=signals,
        is_preempted=False,
        has_progress=has_progress(facts),
        error=error,
        would_repeat=would_repeat(facts, failed) or cause in REPEATED,
        kind=kind,
    )


def causes(
    errors: Sequence[RankError], agents: Sequence[AgentRecord | None], has_torchrun_failed: bool
) -> tuple[RankError, ...]:
    """Return the error records without those of ranks that obeyed their agents' stop in start-up.

    An agent passes on each signal, also that which srun sends after another agent has died: what
    the agents recorded decides what it was. A torchrun that fails by itself sends SIGTERM, too. A
    signal that neither sent was sent to a rank.
    """
    is_passed_on = has_torchrun_failed or any(agent is None or agent.signals for agent in agents)
    stopped = Kind.STOPPED_IN_START_UP
    return tuple(each for each in errors if each.kind is not stopped or not is_passed_on)


def first_error(errors: Sequence[RankError]) -> RankError | None:
    """Return the record of the rank that failed first, or hung: its peers failed because of it."""
    return min(errors, key=_distance_from_cause, default=None)


def further_errors(errors: Sequence[RankError]) -> list[RankError]:
    """Return the other ranks that failed and did not only lose a peer, the first one first."""
    own = [each for each in errors if not each.caused_by_peer]
    return sorted(own, key=_distance_from_cause)[1:]


def _distance_from_cause(record: RankError) -> tuple[bool, bool, float]:
    return (record.kind not in (Kind.HANG, Kind.BAD_NODE), record.caused_by_peer, record.time)


def _named_kind(failed: RankError | None) -> Kind | None:
    """Return the kind of a rank's failure; None where the rank could not name it."""
    return None if failed is None or failed.kind is Kind.UNKNOWN else failed.kind


def has_progress(facts: AttemptFacts) -> bool:
    """Return whether a newer checkpoint than at the start was committed.

    A different one is not enough: after a damaged one was quarantined, an older one is the newest.
    """
    return is_newer(facts.saved.checkpoint, None if facts.plan is None else facts.plan.checkpoint)


def error_of(facts: AttemptFacts, failed: RankError | None, killed: list[str]) -> str | None:
    """Return why the attempt failed, in one line; None if neither rank nor kernel has a reason."""
    # A rank killed for memory writes no error record, and its peers only see a closed connection.
    if killed:
        return "; ".join(_out_of_memory(facts, host) for host in killed)
    if failed is None:
        return None
    return (failed.caused_by_peer and ranks_without_record(facts)) or format_error(failed)


def _out_of_memory(facts: AttemptFacts, host: str) -> str:
    """Return what the kernel killed on a node for want of memory: which rank, and the limit."""
    ended = {each.rank: each.exit_code for each in facts.of_nodes.errors if each.host == host}
    ranks = [f"rank {rank}" for rank, code in sorted(ended.items()) if code == -signal.SIGKILL]
    limits = (x.memory_limit_mib for x in facts.of_nodes.known_agents if x.host == host)
    limit = next(limits, None)
    what = ", ".join(ranks) or "a process"
    of_limit = f": the job may use {limit} MiB of the node (slurm.mem)" if limit else ""
    return f"{host}: the kernel killed {what} for want of memory{of_limit}"


def would_repeat(facts: AttemptFacts, failed: RankError | None) -> bool:
    """Return whether a retry would repeat the error, by the first rank's or an agent's word."""
    if failed is not None:
        return failed.would_repeat
    return any(agent.error is not None for agent in facts.of_nodes.known_agents)


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


def ranks_without_record(facts: AttemptFacts) -> str | None:
    """Return a text that names the ranks that are gone; None if there are none."""
    gone = [f"rank {rank} on {host}" for rank, host in facts.of_nodes.gone]
    why = "died without an error record (SIGKILL or a crash of the interpreter)"
    return f"{', '.join(gone)} {why}" if gone else None


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
    if is_completed(facts):
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


def has_failed(agent: AgentRecord) -> bool:
    """Return whether an agent's torchrun ended with an error or could not be started."""
    return bool(agent.torchrun_exit) or agent.error is not None


def warning_signals(facts: AttemptFacts, failed: RankError | None) -> tuple[str, ...]:
    """Return the stop signals that agents received before anything failed, in order.

    After the agent of one node has failed, srun sends SIGTERM to the others: that is a consequence
    of the failure and no warning.
    """
    agents = facts.of_nodes.known_agents
    failures = [(a.end, a.host) for a in agents if has_failed(a) and a.end is not None]
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
    any_failed = any(map(has_failed, facts.of_nodes.known_agents))
    is_missed = None in facts.of_nodes.agents and not any_failed and not facts.of_nodes.agent_errors
    died_of = [number.name for number in STOP_SIGNALS if srun_exit == 128 + number]
    return tuple(died_of) if is_missed else ()


def nodes_without_end(facts: AttemptFacts) -> dict[str, AgentRecord | None]:
    """Return the nodes whose agent recorded no end, with its record."""
    agents = zip(facts.nodes, facts.of_nodes.agents, strict=True)
    return {node: agent for node, agent in agents if agent is None or agent.end is None}


def is_near_limit(facts: AttemptFacts, now: float) -> bool:
    """Return whether the time limit's warning, sent once by Slurm, might come between two steps."""
    deadline = None if facts.plan is None else facts.plan.deadline
    return deadline is not None and now > deadline - facts.spec.slurm.signal_lead_s - RETRY_S


def newly_quarantined(facts: AttemptFacts) -> tuple[str, ...]:
    """Return the checkpoints quarantined since the attempt opened, by name: clocks may differ."""
    before = () if facts.plan is None else facts.plan.quarantined
    return tuple(name for name in facts.saved.quarantined if name not in before)


def steps_of(facts: AttemptFacts) -> tuple[int | None, int | None]:
    """Return the first and the last optimizer step that the attempt did; None where it did none."""
    loaded, last = loaded_step(facts), facts.step
    if loaded is None or last is None or last <= loaded:
        return None, None
    return loaded + 1, last


def loaded_step(facts: AttemptFacts) -> int | None:
    """Return the step at which the attempt began; None where it is not known.

    A user's script reports only the first step that it finished. It may report every tenth step,
    so a checkpoint that it reported before is the better beginning.
    """
    if (loaded := first_event(facts, "loaded")) is not None:
        return loaded.step
    first = first_event(facts, "first_step")
    if first is None or first.step is None or facts.spec.launch.is_trainer:
        return None
    name = None if facts.plan is None else facts.plan.checkpoint
    saved = None if name is None else checkpoint_step(name)
    return saved if saved is not None and saved < first.step else first.step - 1


def times_of(facts: AttemptFacts, is_warned: bool, now: float) -> tuple[float | None, float | None]:
    """Return how long the attempt took to stop and to start, in seconds; None where it did not.

    The stop: from the first warning to now; the start: from the opening to the first step.
    `is_warned`: signals that only follow from a failure are no warning.
    """
    signals = [each.t for agent in facts.of_nodes.known_agents for each in agent.signals]
    begun = first_event(facts, "first_step")
    stop_s = round(now - min(signals), 3) if signals and is_warned else None
    start_s = None if begun is None or facts.plan is None else round(begun.t - facts.plan.start, 3)
    return stop_s, start_s


def first_event(facts: AttemptFacts, name: str) -> Event | None:
    """Return rank 0's first timeline event of a name in the attempt."""
    return next((event for event in facts.of_nodes.events if event.event == name), None)


def is_without_step(facts: AttemptFacts) -> bool:
    """Return whether the attempt did no step, in a run whose steps the kit knows."""
    is_known = facts.spec.launch.is_trainer or facts.step is not None
    return is_known and facts.plan is not None and first_event(facts, "first_step") is None


def reached_step(facts: AttemptFacts) -> int | None:
    """Return the last finished optimizer step of the run; 0 before the first.

    A user's script may write no progress.json, but its step into outcome.json; None for one that
    writes neither.
    """
    step = facts.step if facts.step is not None else facts.outcome.global_step
    return 0 if step is None and facts.spec.launch.is_trainer else step


def is_end_recorded(last: AttemptRecord | None, job_id: str | None) -> bool:
    """Return whether a job recorded that it ended the run: it does not go on, whatever Slurm shows.

    last: the newest record of the run.
    """
    return last is not None and last.job_id == job_id and last.decision in FINAL


def is_unrecorded(facts: AttemptFacts) -> bool:
    """Return whether the attempt is the newest and has no record: it runs, or nobody closed it."""
    return facts.attempt > max((record.attempt for record in facts.attempts), default=0)


def is_completed(facts: AttemptFacts) -> bool:
    """Return whether the run is recorded as complete, by its result or newest attempt's record."""
    if facts.result is not None:
        return facts.result.status == "completed"
    return facts.last is not None and facts.last.decision is Action.DONE


def is_training_complete(facts: AttemptFacts) -> bool:
    """Return whether the run is complete, also if its killed batch script did not record it."""
    if is_completed(facts):
        return True
    return is_unrecorded(facts) and rank_evidence(facts).outcome == "completed"


def steps_redone(attempts: Sequence[AttemptRecord]) -> int:
    """Return the optimizer steps that were done more than once."""
    done = redone = 0
    for entry in attempts:
        if entry.first_step is not None and entry.last_step is not None:
            redone += max(0, done - entry.first_step + 1)
            done = entry.last_step
    return redone


def code_spans(attempts: Sequence[AttemptRecord]) -> tuple[CodeSpan, ...]:
    """Return which frozen code did which steps that the result contains, in the order of the steps.

    Steps that an attempt did again belong to the code of the later attempt.
    """
    spans: list[CodeSpan] = []
    for entry in attempts:
        if entry.code is None or entry.first_step is None or entry.last_step is None:
            continue
        first = entry.first_step
        spans = [
            replace(span, last_step=min(span.last_step, first - 1))
            for span in spans
            if span.first_step < first
        ]
        if spans and spans[-1].code == entry.code:
            first = spans.pop().first_step
        spans.append(CodeSpan(entry.code, first, entry.last_step))
    return tuple(spans)


def result_of(facts: AttemptFacts, action: Action, reason: str) -> Result:
    """Return the result of a run that ends so. `facts`: with the last attempt's record.

    What the outcome.json of a user's script has beside its status is not copied; `global_step` is
    the last one that the script reported, if it did.
    """
    is_step_known = facts.spec.launch.is_trainer or facts.step is not None
    redone = steps_redone(facts.attempts) if is_step_known else None
    if action is not Action.DONE:
        return Result(
            status="cancelled" if action is Action.CANCEL else "held",
            reason=reason,
            global_step=reached_step(facts),
            attempts=len(facts.attempts),
            steps_redone=redone,
        )
    complete = Result("completed", attempts=len(facts.attempts), steps_redone=redone)
    if not facts.spec.launch.is_trainer:
        return replace(complete, global_step=facts.step)
    return replace(
        complete,
        global_step=facts.outcome.global_step,
        epoch=facts.outcome.epoch,
        metrics=facts.outcome.metrics,
        weights_sha256=facts.outcome.weights_sha256,
        optimizer_sha256=facts.outcome.optimizer_sha256,
        best=facts.outcome.best,
        exactness=facts.outcome.exactness,
        exactness_reason=facts.outcome.exactness_reason,
        code=code_spans(facts.attempts) or None,
    )
