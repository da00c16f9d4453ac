"""attempts.jsonl: how each attempt ended, on what evidence, and what was decided."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ..kinds import Cause as Cause
from ..kinds import Kind
from ..rundir import RunDir
from . import OMIT_NONE, read_lines
from .queued import RequeueAnswer


class Action(StrEnum):
    """What the batch script does after an attempt."""

    DONE = "done"  # the run is complete
    RETRY = "retry"  # start a new srun step in this allocation
    REQUEUE = "requeue"  # ask Slurm to start the job again
    SUCCESSOR = "successor"  # leave the run to the job that waits for the end of this one
    WAIT = "wait"  # Slurm requeues the job without our request
    HOLD = "hold"  # stop with the reason; only a resume continues the run
    CANCEL = "cancel"  # the job was cancelled: the run never continues without a resume


# After these only a user's resume continues the run.
ENDS = (Action.HOLD, Action.CANCEL)
# With these the run has a result.
FINAL = (*ENDS, Action.DONE)


# In place of Slurm's JobState: the batch script was killed, and a later start records the attempt.
LOST = "LOST"


@dataclass(frozen=True)
class LeftOut:
    """A node that the next attempts do without. A plugin that knows some keeps them as `left_out`.

    time: when the attempt ended that spoke against it, in seconds since the epoch.
    """

    node: str
    kind: Kind
    text: str
    time: float


@dataclass(frozen=True)
class Evidence:
    """What is known when an attempt has ended. `attempts.jsonl` keeps it beside the decision."""

    # The status in outcome.json: completed, stopped, or None. For a user's script that wrote none
    # it follows from the exit codes: all 0 is completed, but stopped if a stop was sent or Slurm
    # ends the job, and None if the script reported more steps than it did.
    outcome: str | None
    job_state: str  # Slurm's JobState; LOCAL without Slurm, UNKNOWN without an answer
    job_reason: str  # Slurm's Reason
    signals: tuple[str, ...]  # stop signals that reached an agent, in order
    is_preempted: bool  # Slurm has a PreemptTime for this start of the job
    has_progress: bool  # a checkpoint was committed during the attempt
    error: str | None  # the first failing rank, its node and its error
    is_requeued: bool = False  # Slurm has counted the job's next start already
    would_repeat: bool = False  # a retry would end with the same error
    is_near_limit: bool = False  # a retry in this allocation might miss the time limit's warning
    can_requeue: bool = True  # Slurm may start this very job again
    unreachable_nodes: tuple[str, ...] = ()  # nodes whose agent never ended, and that do not answer
    kind: Kind | None = field(default=None, metadata=OMIT_NONE)  # of the error
    plugins: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Times:
    """When an attempt began and ended, in seconds since the epoch, and how long its stop took."""

    start: float | None  # None where the plan is lost
    stop: float
    stop_s: float | None = None  # from the first warning to the close


@dataclass(frozen=True)
class Why:
    """What the command why shows of an attempt's end."""

    kind: Kind = Kind.UNKNOWN  # of what ended it
    # FILE:LINE of the user's code that failed, and the log that shows more.
    place: str | None = field(default=None, metadata=OMIT_NONE)
    log: str | None = field(default=None, metadata=OMIT_NONE)
    # Of a hold: the budget that is used up, or NOT_REQUEUED; left out where no budget decided.
    budget: Kind | None = field(default=None, metadata=OMIT_NONE)
    # What Slurm did with the requeue that the first record of the attempt decided on.
    requeue: RequeueAnswer | None = field(default=None, metadata=OMIT_NONE)


@dataclass(frozen=True)
class AttemptRecord:
    """A line of attempts.jsonl: what ended an attempt, and what was decided."""

    attempt: int
    job_id: str | None
    nodes: tuple[str, ...] | None
    times: Times
    cause: Cause
    first_step: int | None  # the optimizer steps that the attempt did; None where it did none
    last_step: int | None
    checkpoint: str | None  # the newest one at the end
    quarantined: tuple[str, ...]  # checkpoints that this attempt found damaged
    decision: Action
    reason: str
    evidence: Evidence
    why: Why = Why()
    code: str | None = field(default=None, metadata=OMIT_NONE)  # name of the frozen code


@dataclass(frozen=True)
class NewestCheckpoint:
    """The one key of a line of attempts.jsonl that the trainer reads."""

    checkpoint: str | None = None


def read_attempts(run_dir: RunDir) -> list[AttemptRecord]:
    """Return one record for each closed attempt, in the order in which they were closed.

    attempts.jsonl is append-only: a later line of the same attempt corrects the earlier one.
    """
    folded = {line.attempt: line for line in read_lines(AttemptRecord, run_dir.attempts)}
    return list(folded.values())
