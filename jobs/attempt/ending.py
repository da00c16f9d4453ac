"""How an attempt ended: the one value of which the decision about the run's next start is made."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..records.ended import LOST, Evidence
from ..records.nodes import AgentRecord, RankError
from ..slurm import job_state

# A crash that comes so soon after the start of the attempt, before a step, is a quick one.
SOON_S = 60.0


@dataclass(frozen=True)
class Ending:
    """How an attempt ended.

    is_quick: it ran SOON_S at most, and did no step. saves_steps: it did steps that a stop should
    have saved. is_by_exit_code: its script wrote no outcome, and each rank exited with 0.
    is_automatic: no user asked for the start that records it.
    """

    evidence: Evidence
    first: RankError | None = None  # the rank that failed first, or hung
    further: tuple[RankError, ...] = ()  # that failed after it, and did not only lose a peer
    silent: Mapping[str, AgentRecord | None] = field(default_factory=dict)  # nodes without an end
    is_quick: bool = False
    saves_steps: bool = False
    is_by_exit_code: bool = False
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
