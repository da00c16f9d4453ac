"""What happens after an attempt: pure functions from its end and earlier records to a decision.

Their table is in tests/core/attempt/test_decision.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..base.log_text import first_line
from ..contract.kinds import KINDS, Kind
from ..contract.records.ended import ENDS, Action, AttemptRecord, Cause, Evidence
from ..contract.records.queued import RequeueAnswer
from ..contract.spec import Spec
from .ending import SOON_S, Ending

__all__ = ["Action", "Cause", "Ending", "Evidence"]  # for those who decide

# These end the job's present start.
RESTARTS = (Action.REQUEUE, Action.SUCCESSOR, Action.WAIT)

BY_SLURM = "; Slurm requeues the job by itself"
LOST_REASON = KINDS[Kind.BATCH_SCRIPT_KILLED].what

# These come from outside: they say nothing about the run, so only the restarts bound them.
EXTERNAL_STOPS = (Cause.PREEMPTION, Cause.MANUAL_STOP)
# These count against the crash budget: unlike a lost node, the run itself may be at fault.
CRASHES = (Cause.CRASH, Cause.HANG, Cause.OUT_OF_MEMORY)


@dataclass(frozen=True)
class History:
    """What the earlier attempts of a run have used of each budget, and how the last one ended."""

    restarts: int = 0  # attempts that ended with the job
    # Without progress since: a new checkpoint, or a later step that kit_stop.py reports.
    crashes: int = 0  # within a day
    attempts: int = 0  # in a row; preemptions and stops by hand do not count
    is_quick_crash: bool = False  # the last one crashed within a minute, before a step


@dataclass(frozen=True)
class Budget:
    """How often a run is started again without a user's request.

    attempts: None for a script, which may save its work where the kit does not see it.
    """

    restarts: int = 200
    crashes: int = 3
    attempts: int | None = 5


@dataclass(frozen=True)
class Decision:
    """What to do, what ended the attempt, and why, as a text for the user.

    budget: the kind of the budget that turned a new start into a hold. kind: of what ended the
    attempt, where that is known already.
    """

    action: Action
    cause: Cause
    reason: str
    budget: Kind | None = None
    kind: Kind | None = None


COMPLETED = Decision(Action.DONE, Cause.COMPLETED, "all steps are done")


def format_decision(decision: Decision) -> str:
    """Return `crash: rank 1 was killed -> hold`."""
    return f"{decision.cause}: {decision.reason} -> {decision.action}"


def decide(ending: Ending, history: History, budget: Budget = Budget()) -> Decision:
    """Return the decision after one attempt: the row that fits, within the budgets.

    The run directory knows better than Slurm whether the run is complete: a run that finishes in
    the slack behind its time limit is booked as TIMEOUT.
    """
    if ending.evidence.outcome == "completed":
        return COMPLETED
    decision = within_budget(_by_row(ending, history, budget), ending.evidence, history, budget)
    return _with_unsaved(decision, ending)


def _by_row(ending: Ending, history: History, budget: Budget) -> Decision:
    """Return the decision of the first row that fits, for a run that is not complete."""
    evidence = ending.evidence
    # The batch script was killed; this is the next start of the job. Where a user submitted that,
    # the run stood still until then, and the budgets begin again.
    if ending.is_lost and not ending.is_automatic:
        return Decision(Action.HOLD, Cause.LOST, LOST_REASON)
    if ending.is_lost and evidence.unreachable_nodes:
        return Decision(Action.RETRY, Cause.NODE, no_answer(evidence))
    if ending.is_lost:
        return Decision(Action.RETRY, Cause.LOST, LOST_REASON)
    if evidence.is_requeued:
        if evidence.unreachable_nodes:
            reason = f"{no_answer(evidence)}; Slurm has requeued the job"
            return Decision(Action.WAIT, Cause.NODE, reason)
        return Decision(Action.WAIT, Cause.REQUEUED, "Slurm or an administrator requeued the job")
    if ending.is_cancelled:
        return after_cancel(evidence)
    # After a launch by hand there is no agent that records the signal.
    is_stopped = evidence.outcome == "stopped" or evidence.kind is Kind.STOPPED_IN_START_UP
    if evidence.job_state == "LOCAL" and (evidence.signals or is_stopped):
        return Decision(Action.HOLD, Cause.INTERRUPTED, "stopped on request")
    if evidence.signals or is_stopped or evidence.is_preempted or ending.is_over_limit:
        return after_warning(ending)
    if not ending.has_allocation:
        reason = f"Slurm ended the job: {evidence.job_state} {evidence.job_reason}"
        cause = Cause.NODE if evidence.unreachable_nodes else Cause.REQUEUED
        return start_again(ending, cause, reason, Action.WAIT)
    if evidence.unreachable_nodes:
        reason = first_line(evidence.error or "") or no_answer(evidence)
        return start_again(ending, Cause.NODE, reason)
    if ending.got_no_step and not ending.is_quick and evidence.job_state == "RUNNING":
        return start_again(ending, Cause.NODE, "Slurm gave the retry no step")
    return after_crash(ending, history, budget)


def start_again(
    ending: Ending, cause: Cause, reason: str, action: Action = Action.REQUEUE
) -> Decision:
    """Return the decision to continue in another start of the job, or in a successor job.

    `action`: REQUEUE if the kit asks Slurm to start the job again, WAIT if Slurm does it unasked.
    """
    if not ending.evidence.can_requeue or ending.is_over_limit:
        action = Action.SUCCESSOR
    if action is Action.WAIT:
        reason += BY_SLURM
    return Decision(action, cause, reason)


def after_cancel(evidence: Evidence) -> Decision:
    """Return the decision about a job that was cancelled, by a user or by preemption."""
    reason = "the job was cancelled"
    if evidence.is_preempted:
        reason = "cancelled by a preemption, or by a user after it"
    return Decision(Action.CANCEL, Cause.CANCELLED, reason)


def no_answer(evidence: Evidence) -> str:
    return f"no answer from {', '.join(evidence.unreachable_nodes)}"


def after_crash(ending: Ending, history: History, budget: Budget) -> Decision:
    """Return the decision if ranks failed or hung: a retry in this allocation, within a budget.

    Two crashes in a row hold the run, if each comes within a minute and before a step.
    """
    evidence = ending.evidence
    cause = crash_cause(evidence)
    crash = first_line(evidence.error or "the processes ended without an error record")
    if evidence.would_repeat:
        return Decision(Action.HOLD, cause, crash)
    crashes = 1 if evidence.has_progress else history.crashes + 1
    if crashes >= budget.crashes:
        of_script = "a step saved by kit_stop.py, or a file in KIT_CHECKPOINT_DIR"
        progress = "a new checkpoint" if budget.attempts else of_script
        row = f"{crashes} crashes within 24 hours without {progress}: " if crashes > 1 else ""
        return Decision(Action.HOLD, cause, f"{row}{crash}", Kind.MAX_CRASHES)
    if ending.is_quick and history.is_quick_crash and not evidence.has_progress:
        reason = f"two attempts in a row crashed within a minute: {crash}"
        return Decision(Action.HOLD, cause, reason)
    if evidence.is_near_limit:
        return start_again(ending, cause, f"{crash}; too near the time limit for a retry here")
    return Decision(Action.RETRY, cause, crash)


def crash_cause(evidence: Evidence) -> Cause:
    """Return which of CRASHES ended an attempt that failed from inside."""
    cause = None if evidence.kind is None else KINDS[evidence.kind].cause
    return cause if cause in CRASHES else Cause.CRASH


def after_warning(ending: Ending) -> Decision:
    """Return the decision after a warned stop, or after a failure that followed the warning."""
    cause, reason = _cause_of_stop(ending)
    action = Action.REQUEUE if ending.has_allocation else Action.WAIT
    return start_again(ending, cause, reason, action)


def _cause_of_stop(ending: Ending) -> tuple[Cause, str]:
    """Return the cause of a warned stop, and its reason.

    A job that Slurm preempts has a PreemptTime while it is RUNNING in its grace. Without Slurm's
    answer, or where Slurm is ending the job already, a SIGTERM is taken for a preemption.
    """
    evidence = ending.evidence
    if ending.is_over_limit:
        return Cause.TIME_LIMIT, "the time limit was reached"
    if evidence.is_preempted:
        return Cause.PREEMPTION, "preempted"
    is_near = evidence.job_state == "RUNNING" and evidence.is_near_limit  # --signal may be any
    if is_near or ("SIGUSR1" in evidence.signals and evidence.signals[0] != "SIGTERM"):
        return Cause.TIME_LIMIT, "the time limit is near"
    if evidence.job_state == "RUNNING":
        what = evidence.signals[0] if evidence.signals else "a stop signal to a rank"
        return Cause.MANUAL_STOP, f"{what} was sent by hand: Slurm does not preempt the job"
    return Cause.PREEMPTION, "preempted, or stopped by hand"


def _with_unsaved(decision: Decision, ending: Ending) -> Decision:
    """Return the decision, which names why a stop did not save the steps that it should have."""
    is_limit, evidence = decision.cause is Cause.TIME_LIMIT, ending.evidence
    is_stop = is_limit or decision.cause in EXTERNAL_STOPS
    if not is_stop or evidence.outcome is not None or not ending.saves_steps:
        return decision
    if ending.silent:  # the ranks did not end by themselves
        why, kind = "killed before the save finished", Kind.NOT_SAVED if is_limit else decision.kind
    else:
        error = first_line(evidence.error or "")
        why, kind = f"the ranks exited without saving{error and ': '}{error}", decision.kind
    return replace(decision, reason=f"{decision.reason}; {why}", kind=kind)


def within_budget(
    decision: Decision, evidence: Evidence, history: History, budget: Budget
) -> Decision:
    """Return `decision`, or a hold where a budget is used up."""
    if decision.action in (Action.HOLD, Action.CANCEL):
        return decision
    idle = 0 if evidence.has_progress else history.attempts + 1
    is_counted = budget.attempts is not None and decision.cause not in EXTERNAL_STOPS
    if is_counted and idle >= (budget.attempts or 0):
        reason = f"{idle} attempts without a new checkpoint, the last one: {decision.reason}"
        return Decision(Action.HOLD, decision.cause, reason, Kind.NO_PROGRESS)
    if is_restart(decision.action, decision.cause) and history.restarts >= budget.restarts:
        reason = f"{history.restarts} restarts are used up, the last one: {decision.reason}"
        return Decision(Action.HOLD, decision.cause, reason, Kind.MAX_RESTARTS)
    return decision


def is_restart(action: str, cause: str) -> bool:
    """Return whether the job starts again after an attempt; after a lost one it did, if at all."""
    return action in RESTARTS or cause in (Cause.LOST, Cause.NODE)


def is_automatic_start(job_id: str, last_job_id: str | None, predecessor: str | None) -> bool:
    """Return whether a job takes the run over from its last job without a user's request.

    `predecessor`: the id of the job whose successor this job is.
    """
    return last_job_id is not None and last_job_id in (job_id, predecessor)


def refusal(last: AttemptRecord | None, job_id: str, predecessor: str | None) -> str | None:
    """Return why this start of a job must not continue the run; None if it may.

    A job that was held or cancelled may still be started again: by Slurm, which requeues a job
    whose node is lost whatever the attempt decided, or by a requeue that came too late. Where
    slurmctld did not answer the request to requeue, this start is the requested one.
    """
    if last is None or last.decision not in ENDS:
        return None
    if last.decision is Action.HOLD and last.why.requeue is RequeueAnswer.NO_ANSWER:
        return None
    if not is_automatic_start(job_id, last.job_id, predecessor):
        return None
    return f"{last.decision}: {last.reason}"


def history_of(attempts: Sequence[AttemptRecord], now: float = 0.0) -> History:
    """Return what counts against the budgets since the last hold or cancel: then a user resumed.

    now: in seconds since the epoch; 0: crashes count that are more than a day old, too.
    """
    crashes = restarts = idle = 0
    may_count = True  # no attempt since has had progress
    for entry in reversed(attempts):
        if entry.decision in ENDS:
            break
        is_recent = entry.times.stop > now - 24 * 3600
        crashes += may_count and is_recent and entry.cause in CRASHES
        may_count = may_count and not entry.evidence.has_progress
        idle += may_count and entry.cause not in EXTERNAL_STOPS
        restarts += is_restart(entry.decision, entry.cause)
    return History(restarts, crashes, idle, bool(attempts) and _is_quick_crash(attempts[-1]))


def _is_quick_crash(last: AttemptRecord) -> bool:
    start, is_over = last.times.start, last.decision in ENDS
    if last.cause not in CRASHES or last.first_step is not None or is_over or start is None:
        return False
    return last.times.stop - start <= SOON_S


def budget_of(spec: Spec) -> Budget:
    restarts = Budget.restarts if (wanted := spec.slurm.max_restarts) is None else wanted
    attempts = Budget.attempts if spec.launch.is_trainer else None
    return Budget(restarts, spec.launch.max_crashes, attempts)
