"""What happens after an attempt: one pure function from evidence to decision.

The table of it is in tests/unit/attempt/test_decision.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from jobs.records import Action, Cause, Evidence
from jobs.slurm.client import ENDED_STATES, is_cancelled

__all__ = ["Action", "Cause", "Evidence"]  # of jobs.records, for those who decide


# These end the job's present start.
RESTARTS = (Action.REQUEUE, Action.SUCCESSOR, Action.WAIT)


LOST_REASON = "the batch script was killed before it could record the attempt"

# These come from outside: they say nothing about the run, so only the restarts bound them.
EXTERNAL_STOPS = (Cause.PREEMPTION, Cause.MANUAL_STOP)
# These count against the crash budget: unlike a lost node, the run itself may be at fault.
CRASHES = (Cause.CRASH, Cause.HANG, Cause.OUT_OF_MEMORY)


@dataclass(frozen=True)
class History:
    """What earlier attempts of the run leave to be counted."""

    restarts: int  # attempts that ended with the job
    # Each in a row, up to the attempt before; progress is a new checkpoint.
    crashes_without_progress: int
    attempts_without_progress: int  # of any cause but EXTERNAL_STOPS
    time_limits_without_step: int = 0  # no optimizer step was finished


@dataclass(frozen=True)
class Budget:
    """How often a run comes back by itself."""

    restarts: int = 200
    crashes_without_progress: int = 3
    attempts_without_progress: int = 5
    time_limits_without_step: int = 3


@dataclass(frozen=True)
class Decision:
    """What to do, what ended the attempt, and why, in words for the user."""

    action: Action
    cause: Cause
    reason: str


COMPLETED = Decision(Action.DONE, Cause.COMPLETED, "all steps are done")


def format_decision(decision: Decision) -> str:
    """`crash: rank 1 was killed -> hold`."""
    return f"{decision.cause}: {decision.reason} -> {decision.action}"


def decide(evidence: Evidence, history: History, budget: Budget = Budget()) -> Decision:
    """The decision after one attempt.

    The run directory knows better than Slurm whether the run is complete: a run that finishes in
    the slack behind its time limit is booked as TIMEOUT.
    """
    if evidence.outcome == "completed":
        return COMPLETED
    if evidence.is_requeued:
        return within_budget(after_requeue(evidence), evidence, history, budget)
    if is_cancelled(evidence.job_state, evidence.job_reason):
        return within_budget(after_cancel(evidence), evidence, history, budget)
    if evidence.job_state == "LOCAL" and evidence.signals:
        return Decision(Action.HOLD, Cause.INTERRUPTED, "stopped on request")
    is_stopped = evidence.outcome == "stopped" or is_over_limit(evidence)
    if evidence.signals or evidence.is_preempted or is_stopped:
        return within_budget(after_warning(evidence), evidence, history, budget)
    if is_ending(evidence):
        state = f"{evidence.job_state} {evidence.job_reason}"
        reason = f"Slurm ended the job: {state}"
        cause = Cause.NODE if evidence.silent_nodes else Cause.REQUEUED
        decision = come_back(evidence, cause, reason, Action.WAIT)
        return within_budget(decision, evidence, history, budget)
    if evidence.bad_nodes or evidence.silent_nodes:
        return within_budget(after_node_trouble(evidence), evidence, history, budget)
    return after_crash(evidence, history, budget)


def come_back(
    evidence: Evidence, cause: Cause, reason: str, action: Action = Action.REQUEUE
) -> Decision:
    """The decision to go on in another start of the job; in another job where there is none.

    `action`: who starts the job again, we (REQUEUE) or Slurm (WAIT).
    """
    if not evidence.can_requeue or is_over_limit(evidence):
        action = Action.SUCCESSOR
    if action is Action.WAIT:
        reason += "; Slurm requeues the job by itself"
    return Decision(action, cause, reason)


def after_cancel(evidence: Evidence) -> Decision:
    """The decision about a job that was cancelled, by somebody or by preemption.

    While it ends, Slurm does not say which where preemption cancels (PreemptMode=CANCEL); the job
    after this one will know.
    """
    if not evidence.is_preempted:
        return Decision(Action.CANCEL, Cause.CANCELLED, "the job was cancelled")
    reason = "cancelled by a preemption, or by somebody after it"
    if evidence.has_successor:
        return Decision(Action.SUCCESSOR, Cause.PREEMPTION, reason)
    return Decision(Action.CANCEL, Cause.CANCELLED, reason)


def after_requeue(evidence: Evidence) -> Decision:
    """The decision about a job that Slurm has queued again: its node was lost, or somebody did."""
    if evidence.silent_nodes:
        reason = f"{no_answer(evidence)}; Slurm has requeued the job"
        return Decision(Action.WAIT, Cause.NODE, reason)
    return Decision(Action.WAIT, Cause.REQUEUED, "Slurm or an administrator requeued the job")


def no_answer(evidence: Evidence) -> str:
    """Which nodes are silent."""
    return f"no answer from {', '.join(evidence.silent_nodes)}"


def after_node_trouble(evidence: Evidence) -> Decision:
    """The decision after a node failed or fell silent: elsewhere, as a new start of the job."""
    reason = evidence.error or no_answer(evidence)
    if evidence.job_state == "LOCAL":
        return Decision(Action.HOLD, Cause.NODE, reason)
    return come_back(evidence, Cause.NODE, reason)


def after_crash(evidence: Evidence, history: History, budget: Budget) -> Decision:
    """The decision after ranks failed, or hung until they were killed: again, within a budget."""
    cause = Cause.HANG if evidence.is_hang else Cause.CRASH
    if evidence.is_out_of_memory:
        cause = Cause.OUT_OF_MEMORY
    crash = evidence.error or "the processes ended without an error record"
    if evidence.is_user_error:
        return Decision(Action.HOLD, cause, crash)
    crashes = 1 if evidence.has_progress else history.crashes_without_progress + 1
    if crashes >= budget.crashes_without_progress:
        repeated = f"{crashes} crashes without progress: {crash}" if crashes > 1 else crash
        return Decision(Action.HOLD, cause, repeated)
    decision = Decision(Action.RETRY, cause, crash)
    if evidence.is_near_limit:
        decision = come_back(evidence, cause, f"{crash}; too near the time limit for a retry here")
    return within_budget(decision, evidence, history, budget)


def is_ending(evidence: Evidence) -> bool:
    """Whether Slurm has taken the allocation away already."""
    return evidence.job_state in {"COMPLETING", "PENDING"} | ENDED_STATES


def is_over_limit(evidence: Evidence) -> bool:
    """Whether Slurm has ended the job at its time limit; it never starts such a job again."""
    return evidence.job_state == "TIMEOUT" or (
        is_ending(evidence) and evidence.job_reason == "TimeLimit"
    )


def after_warning(evidence: Evidence) -> Decision:
    """The decision after a warned stop, or a failure after the warning: come back, for free."""
    cause, reason = cause_of_stop(evidence)
    if evidence.outcome is None:
        reason += "; it ended before it could save"
    if evidence.job_state == "LOCAL":
        return Decision(Action.HOLD, Cause.INTERRUPTED, reason)
    is_slurms = is_ending(evidence) or evidence.is_left_to_slurm
    return come_back(evidence, cause, reason, Action.WAIT if is_slurms else Action.REQUEUE)


def cause_of_stop(evidence: Evidence) -> tuple[Cause, str]:
    """The cause of a warned stop, and its reason.

    A job that Slurm preempts has a PreemptTime while it is RUNNING in its grace. Without Slurm's
    answer, or where Slurm is ending the job already, a SIGTERM is taken for a preemption.
    """
    if is_over_limit(evidence):
        return Cause.TIME_LIMIT, "the time limit was reached"
    if evidence.is_preempted:
        return Cause.PREEMPTION, "preempted"
    if "SIGUSR1" in evidence.signals and evidence.signals[0] != "SIGTERM":
        return Cause.TIME_LIMIT, "the time limit is near"
    if evidence.job_state == "RUNNING":
        what = evidence.signals[0] if evidence.signals else "a stop signal to a rank"
        return Cause.MANUAL_STOP, f"{what} was sent by hand: Slurm does not preempt the job"
    return Cause.PREEMPTION, "preempted, or stopped by hand"


def after_loss(evidence: Evidence, history: History, budget: Budget) -> Decision:
    """The decision after an attempt that nobody closed, at the next start of the job."""
    if evidence.silent_nodes:
        decision = Decision(Action.RETRY, Cause.NODE, no_answer(evidence))
        return _in_time(decision, evidence, history, budget)
    decision = Decision(Action.RETRY, Cause.LOST, LOST_REASON)
    return _in_time(decision, evidence, history, budget)


def within_budget(
    decision: Decision, evidence: Evidence, history: History, budget: Budget
) -> Decision:
    """`decision`, or a hold where the run has come back too often."""
    if decision.action in (Action.HOLD, Action.CANCEL):
        return decision
    return _in_time(decision, evidence, history, budget)


def _in_time(decision: Decision, evidence: Evidence, history: History, budget: Budget) -> Decision:
    idle = 0 if evidence.has_progress else history.attempts_without_progress + 1
    if decision.cause not in EXTERNAL_STOPS and idle >= budget.attempts_without_progress:
        reason = f"{idle} attempts without a new checkpoint, the last one: {decision.reason}"
        return Decision(Action.HOLD, decision.cause, reason)
    limits = history.time_limits_without_step + 1
    is_too_short = decision.cause is Cause.TIME_LIMIT and not evidence.has_step
    if is_too_short and limits >= budget.time_limits_without_step:
        reason = (
            f"{limits} time limits in a row before the first optimizer step was finished: "
            "raise slurm.time"
        )
        return Decision(Action.HOLD, decision.cause, reason)
    if is_restart(decision.action, decision.cause) and history.restarts >= budget.restarts:
        reason = f"{history.restarts} restarts are used up, the last one: {decision.reason}"
        return Decision(Action.HOLD, decision.cause, reason)
    return decision


def is_restart(action: str, cause: str) -> bool:
    """Whether an attempt is followed by another start of the job; a lost one was, if at all."""
    return action in RESTARTS or cause in (Cause.LOST, Cause.NODE)
