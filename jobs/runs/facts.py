"""What the files of a run and of one attempt show, as `jobs.runs.fact_reader` reads them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..base.errors import UserError
from ..contract.kinds import Kind
from ..contract.records.ended import FINAL, Action, AttemptRecord
from ..contract.records.nodes import AgentRecord, AttemptPlan, HangConclusion, RankError
from ..contract.records.queued import SlurmSite, Submission, Successor
from ..contract.records.timeline import Event
from ..contract.records.training import Outcome, Progress, Result
from ..contract.spec import Spec


@dataclass(frozen=True)
class NodeFacts:
    """What the agents and ranks of an attempt wrote."""

    # Of each node of the plan; None where it wrote none.
    agents: tuple[AgentRecord | None, ...] = ()
    agent_errors: tuple[str, ...] = ()  # why agents did not start torchrun, by node rank
    errors: tuple[RankError, ...] = ()  # see `fact_reader.causes`
    # (rank, host) of ranks that left neither an error record nor an end, where their peers only
    # lost a connection.
    gone: tuple[tuple[int, str], ...] = ()
    events: tuple[Event, ...] = ()  # rank 0's, of this attempt
    is_begun: bool = True  # an agent or a rank has written a file of this attempt
    is_stop_requested: bool = False  # an agent created the stop file of this attempt
    # (host, last line) of each torchrun that failed, where no rank has a record.
    last_words: tuple[tuple[str, str], ...] = ()
    hang: HangConclusion | None = None
    # Of a user's script: `rank 1 exited with code 0, and rank 0 did not`; empty while none did.
    ends: str = ""

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
    def is_step_known(self) -> bool:
        """Whether the kit knows the steps of the run: a user's script may report none."""
        return self.spec.launch.is_trainer or self.step is not None

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes of the attempt, first node first."""
        return () if self.plan is None else self.plan.nodes

    @property
    def last(self) -> AttemptRecord | None:
        """The record of the newest attempt that was closed; None before the first."""
        return self.attempts[-1] if self.attempts else None

    @property
    def is_unrecorded(self) -> bool:
        """Whether the attempt is the newest and has no record: it runs, or nobody closed it."""
        return self.attempt > (0 if self.last is None else self.last.attempt)

    @property
    def is_closed(self) -> bool:
        """Whether the newest attempt that was opened has its record."""
        return self.last is not None and not self.is_unrecorded

    @property
    def is_completed(self) -> bool:
        """Whether the run is recorded as complete, by its result or newest attempt's record."""
        if self.result is not None:
            return self.result.status == "completed"
        return self.last is not None and self.last.decision is Action.DONE

    @property
    def is_end_recorded(self) -> bool:
        """Whether the job that was queued last recorded that the run ends, whatever Slurm shows."""
        job_id, last = self.submission.job_id, self.last
        return last is not None and last.job_id == job_id and last.decision in FINAL

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

    def first_event(self, name: str) -> Event | None:
        """Return rank 0's first timeline event of a name in the attempt."""
        return next((event for event in self.of_nodes.events if event.event == name), None)


def first_error(errors: Sequence[RankError]) -> RankError | None:
    """Return the record of the rank that failed first, or hung: its peers failed because of it."""
    return min(errors, key=distance_from_cause, default=None)


def distance_from_cause(record: RankError) -> tuple[bool, bool, float]:
    return (record.kind not in (Kind.HANG, Kind.BAD_NODE), record.caused_by_peer, record.time)
