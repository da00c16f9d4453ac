"""How an attempt ended: the one value of which the decision about the run's next start is made."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..contract.kinds import OF_MEMORY, Kind
from ..contract.records.ended import LOST, Action, Evidence
from ..contract.records.nodes import AgentRecord, RankError
from ..node.torchrun import stop_signal
from ..runs.evidence import unfinished_steps
from ..runs.facts import AttemptFacts, distance_from_cause, first_error
from ..runs.results import steps_of
from ..slurm import job_state

# A crash that comes so soon after the start of the attempt, before a step, is a quick one.
SOON_S = 60.0


@dataclass(frozen=True)
class Ending:
    """How an attempt ended.

    is_quick: it ran SOON_S at most, and did no step. saves_steps: it did steps that a stop should
    have saved. got_no_step: no agent of this retry began. is_automatic: no user asked for the start
    that records it.
    """

    evidence: Evidence
    first: RankError | None = None  # the rank that failed first, or hung
    further: tuple[RankError, ...] = ()  # that failed after it, and did not only lose a peer
    silent: Mapping[str, AgentRecord | None] = field(default_factory=dict)  # nodes without an end
    kind: Kind = Kind.UNKNOWN  # of the failure, if it failed from inside or was lost
    steps: tuple[int | None, int | None] = (None, None)  # the first and the last one that it did
    stop_s: float | None = None  # from the first warning to now
    quarantined: tuple[str, ...] = ()  # checkpoints that it found damaged
    is_quick: bool = False
    saves_steps: bool = False
    got_no_step: bool = False
    is_automatic: bool = True

    @property
    def is_lost(self) -> bool:
        """Whether the batch script was killed, and a later start records the attempt."""
        return self.evidence.job_state == LOST

    @property
    def has_allocation(self) -> bool:
        """Whether Slurm has not taken the job's nodes away, as far as is known."""
        return not job_state.has_no_allocation(self.evidence.job_state)

    @property
    def is_cancelled(self) -> bool:
        """Whether the job was cancelled, unless it was requeued."""
        return job_state.is_cancelled(self.evidence.job_state, self.evidence.job_reason)

    @property
    def is_over_limit(self) -> bool:
        """Whether Slurm ended the job at its time limit; it never starts such a job again."""
        is_taken = not self.has_allocation and self.evidence.job_reason == "TimeLimit"
        return self.evidence.job_state == "TIMEOUT" or is_taken


def ending_of(
    facts: AttemptFacts, evidence: Evidence, now: float, is_automatic: bool = True
) -> Ending:
    """Return how an attempt ended. now: in seconds since the epoch."""
    plan, nodes = facts.plan, facts.of_nodes
    first, begun = first_error(nodes.errors), facts.first_event("first_step")
    own = sorted((x for x in nodes.errors if not x.caused_by_peer), key=distance_from_cause)
    # A lost attempt ended at an unknown time, perhaps long before the start that records it.
    is_warned = bool(evidence.signals) and evidence.job_state != LOST
    warned = [each.t for agent in nodes.known_agents for each in agent.signals if is_warned]
    agents = zip(facts.nodes, nodes.agents, strict=True)
    before = () if plan is None else plan.quarantined  # by name: clocks may differ
    last, retried = facts.last, (Action.RETRY, plan.job_id if plan is not None else None)
    is_retry = last is not None and (last.decision, last.job_id) == retried
    has_agent = stop_signal(facts.spec.launch) is not None and bool(nodes.known_agents)
    return Ending(
        evidence,
        first,
        further=tuple(own[1:]),
        silent={node: agent for node, agent in agents if agent is None or agent.end is None},
        kind=_kind_of_failure(facts, first, evidence),
        steps=steps_of(facts),
        stop_s=round(now - min(warned), 3) if warned else None,
        quarantined=tuple(name for name in facts.saved.quarantined if name not in before),
        is_quick=plan is not None and begun is None and now - plan.start <= SOON_S,
        saves_steps=has_agent and not (facts.is_step_known and plan is not None and begun is None),
        got_no_step=is_retry and not nodes.is_begun,
        is_automatic=is_automatic,
    )


def _kind_of_failure(facts: AttemptFacts, first: RankError | None, evidence: Evidence) -> Kind:
    """Return the kind of an attempt that failed from inside, or ended without a record."""
    if evidence.kind in (Kind.HANG, Kind.NODE_FAILURE, Kind.SPEC_MISTAKE, *OF_MEMORY):
        return evidence.kind
    if facts.of_nodes.agent_errors or any(x.error for x in facts.of_nodes.known_agents):
        return evidence.kind or Kind.SPEC_MISTAKE
    if first is not None and not first.caused_by_peer:
        return first.kind
    if unfinished_steps(facts) is not None:
        return Kind.USER_CODE
    if evidence.job_state == LOST:
        return Kind.BATCH_SCRIPT_KILLED
    exits = [-1 if each is None else each.torchrun_exit for each in facts.of_nodes.agents]
    if facts.of_nodes.gone or any(code is None or code < 0 for code in exits):
        return Kind.PROCESS_KILLED  # a rank, a torchrun or an agent died without its record
    if first is not None:
        return Kind.USER_CODE if facts.of_nodes.ends else Kind.COLLECTIVE
    return evidence.kind or Kind.UNKNOWN
