"""What happens after an attempt: pure functions from evidence and earlier records to a decision.

Their table is in tests/unit/attempt/test_decision.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from ..kinds import KINDS, Kind
from ..log_text import behind_first_line
from ..records.ended import ENDS, Action, AttemptRecord, Cause, Evidence
from ..records.queued import RequeueAnswer
from ..slurm import job_state
from ..slurm.client import is_cancelled
from ..spec import Spec

__all__ = ["Action", "Cause", "Evidence"]  # of jobs.records.ended, for those who decide

# These end the job's present start.
RESTARTS = (Action.REQUEUE, Action.SUCCESSOR, Action.WAIT)

LOST_REASON = "the batch script was killed before it could record the attempt"

# These come from outside: they say nothing about the run, so only the restarts bound them.
EXTERNAL_STOPS = (Cause.PREEMPTION, Cause.MANUAL_STOP)
MANY_BAD_NODES = 20
MAX_LASTING = 2  # attempts with the same failure, of a kind that lasts
# Crashes of a script in a row that show no step forward, whatever failed: see Evidence.is_repeat.
# More than the crashes without a checkpoint: a script may well save each step under one name.
MAX_REPEATS = 10
# These count against the crash budget: unlike a lost node, the run itself may be at fault.
CRASHES = (Cause.CRASH, Cause.HANG, Cause.OUT_OF_MEMORY)


@dataclass(frozen=True)
class BudgetUsed:
    """How much of each budget the earlier attempts of the run have used."""

    restarts: int  # attempts that ended with the job
    # Each in a row, up to the attempt before; progress is a new checkpoint.
    crashes_without_progress: int
    attempts_without_progress: int  # see `is_idle`
    time_limits_without_step: int = 0  # no optimizer step was finished
    bad_nodes: frozenset[str] = frozenset()  # that these attempts without progress found
    # Of the crashes of a user's script since another attempt had progress; see Evidence.
    failures: tuple[str, ...] = ()
    repeats: int = 0  # the last of these crashes that showed no step forward


@dataclass(frozen=True)
class Budget:
    """How often a run is started again without a user's request. num_nodes: of the job."""

    restarts: int = 200
    crashes_without_progress: int = 3
    attempts_without_progress: int = 5
    time_limits_without_step: int = 3
    num_nodes: int = 1


@dataclass(frozen=True)
class Decision:
    """What to do, what ended the attempt, and why, as a text for the user.

    budget: the kind of the budget that turned a new start into a hold.
    not_requeued: why the run does not continue although it should, with Slurm's words.
    """

    action: Action
    cause: Cause
    reason: str
    budget: Kind | None = None
    not_requeued: str = ""


COMPLETED = Decision(Action.DONE, Cause.COMPLETED, "all steps are done")


def format_decision(decision: Decision) -> str:
    """Return `crash: rank 1 was killed -> hold`."""
    return f"{decision.cause}: {behind_first_line(decision.reason, f' -> {decision.action}')}"


def decision_of(record: AttemptRecord) -> Decision:
    """Return the decision that a record has."""
    more = (record.budget, record.not_requeued or "")
    return Decision(record.decision, record.cause, record.reason, *more)


def decide(evidence: Evidence, used: BudgetUsed, budget: Budget = Budget()) -> Decision:
    """Return the decision after one attempt.

    The run directory knows better than Slurm whether the run is complete: a run that finishes in
    the slack behind its time limit is booked as TIMEOUT.
    """
    if evidence.outcome == "completed":
        return COMPLETED
    if evidence.is_requeued:
        return within_budget(after_requeue(evidence), evidence, used, budget)
    if is_cancelled(evidence.job_state, evidence.job_reason):
        return within_budget(after_cancel(evidence), evidence, used, budget)
    # After a launch by hand there is no agent that records the signal.
    is_stopped = evidence.outcome == "stopped" or evidence.is_stopped_in_startup
    if evidence.job_state == "LOCAL" and (evidence.signals or is_stopped):
        return Decision(Action.HOLD, Cause.INTERRUPTED, "stopped on request")
    is_over = evidence.is_preempted or is_over_limit(evidence)
    if evidence.signals or is_stopped or is_over:
        return within_budget(after_warning(evidence), evidence, used, budget)
    if job_state.has_no_allocation(evidence.job_state):
        state = f"{evidence.job_state} {evidence.job_reason}"
        reason = f"Slurm ended the job: {state}"
        cause = Cause.NODE if evidence.unreachable_nodes else Cause.REQUEUED
        decision = start_again(evidence, cause, reason, Action.WAIT)
        return within_budget(decision, evidence, used, budget)
    if evidence.followed:
        return Decision(Action.HOLD, crash_cause(evidence), evidence.followed)
    is_of_node = bool(evidence.bad_nodes or evidence.lost_nodes) and not evidence.would_repeat
    if is_of_node or evidence.unreachable_nodes:
        return within_budget(after_node_trouble(evidence), evidence, used, budget)
    return after_crash(evidence, used, budget)


def start_again(
    evidence: Evidence, cause: Cause, reason: str, action: Action = Action.REQUEUE
) -> Decision:
    """Return the decision to continue in another start of the job, or in a successor job.

    `action`: REQUEUE if the kit asks Slurm to start the job again, WAIT if Slurm does it unasked.
    """
    if not evidence.can_requeue or is_over_limit(evidence):
        action = Action.SUCCESSOR
    if action is Action.WAIT:
        reason = behind_first_line(reason, "; Slurm requeues the job by itself")
    return Decision(action, cause, reason)


def after_cancel(evidence: Evidence) -> Decision:
    """Return the decision about a job that was cancelled, by a user or by preemption.

    Where preemption cancels jobs (PreemptMode=CANCEL), Slurm does not show which it was while the
    job ends; the successor job can find out.
    """
    if not evidence.is_preempted:
        return Decision(Action.CANCEL, Cause.CANCELLED, "the job was cancelled")
    reason = "cancelled by a preemption, or by a user after it"
    if evidence.has_successor:
        return Decision(Action.SUCCESSOR, Cause.PREEMPTION, reason)
    return Decision(Action.CANCEL, Cause.CANCELLED, reason)


def after_requeue(evidence: Evidence) -> Decision:
    """Return the decision about a job that Slurm or an administrator requeued meanwhile."""
    if evidence.unreachable_nodes:
        reason = f"{no_answer(evidence)}; Slurm has requeued the job"
        return Decision(Action.WAIT, Cause.NODE, reason)
    return Decision(Action.WAIT, Cause.REQUEUED, "Slurm or an administrator requeued the job")


def no_answer(evidence: Evidence) -> str:
    """Return a text that names the nodes that do not answer."""
    return f"no answer from {', '.join(evidence.unreachable_nodes)}"


def after_node_trouble(evidence: Evidence) -> Decision:
    """Return the decision if a node is left out or does not answer: start on others.

    In this allocation, where it has enough others.
    """
    signs = "; ".join(f"{sign.node}: {sign.text}" for sign in evidence.signs)
    reason = evidence.error or (no_answer(evidence) if evidence.unreachable_nodes else signs)
    if evidence.job_state == "LOCAL":
        return Decision(Action.HOLD, Cause.NODE, reason)
    if evidence.has_spares and not evidence.is_near_limit:
        return Decision(Action.RETRY, Cause.NODE, reason)
    return start_again(evidence, Cause.NODE, reason)


def after_crash(evidence: Evidence, used: BudgetUsed, budget: Budget) -> Decision:
    """Return the decision if ranks failed or hung: a retry in this allocation, within a budget."""
    cause = crash_cause(evidence)
    crash = evidence.error or "the processes ended without an error record"
    if evidence.would_repeat:
        return Decision(Action.HOLD, cause, crash)
    crashes = 1 if evidence.has_progress else used.crashes_without_progress + 1
    if crashes >= budget.crashes_without_progress:
        repeated = f"{crashes} crashes without progress: {crash}" if crashes > 1 else crash
        return Decision(Action.HOLD, cause, repeated, Kind.MAX_CRASHES)
    # A script that begins again each time leaves new files each time; that is no progress.
    same = used.failures.count(evidence.failure or "") + 1
    is_lasting = evidence.is_lasting and not evidence.has_progress
    limit = MAX_LASTING if is_lasting else budget.crashes_without_progress
    if same >= min(limit, budget.crashes_without_progress):
        reason = f"{same} times the same failure: {crash}"
        return Decision(Action.HOLD, cause, reason, None if is_lasting else Kind.MAX_CRASHES)
    repeats = used.repeats + 1 if evidence.is_repeat else 0
    if repeats >= max(MAX_REPEATS, budget.crashes_without_progress):
        reason = f"{repeats} crashes in a row without a checkpoint of a later step: {crash}"
        return Decision(Action.HOLD, cause, reason, Kind.MAX_CRASHES)
    decision = Decision(Action.RETRY, cause, crash)
    if evidence.is_near_limit:
        reason = behind_first_line(crash, "; too near the time limit for a retry here")
        decision = start_again(evidence, cause, reason)
    return within_budget(decision, evidence, used, budget)


def crash_cause(evidence: Evidence) -> Cause:
    """Return which of CRASHES ended an attempt that failed from inside."""
    cause = None if evidence.kind is None else KINDS[evidence.kind].cause
    return cause if cause in CRASHES else Cause.CRASH


def is_over_limit(evidence: Evidence) -> bool:
    """Return whether Slurm ended the job at its time limit; it never starts such a job again."""
    return evidence.job_state == "TIMEOUT" or (
        job_state.has_no_allocation(evidence.job_state) and evidence.job_reason == "TimeLimit"
    )


def after_warning(evidence: Evidence) -> Decision:
    """Return the decision after a warned stop, or after a failure that followed the warning."""
    cause, reason = cause_of_stop(evidence)
    if evidence.outcome is None:
        reason += "; the attempt ended before it could save"
    does_slurm_requeue = (
        job_state.has_no_allocation(evidence.job_state) or evidence.is_left_to_slurm
    )
    action = Action.WAIT if does_slurm_requeue else Action.REQUEUE
    return start_again(evidence, cause, reason, action)


def cause_of_stop(evidence: Evidence) -> tuple[Cause, str]:
    """Return the cause of a warned stop, and its reason.

    A job that Slurm preempts has a PreemptTime while it is RUNNING in its grace. Without Slurm's
    answer, or where Slurm is ending the job already, a SIGTERM is taken for a preemption.
    """
    if is_over_limit(evidence):
        return Cause.TIME_LIMIT, "the time limit was reached"
    if evidence.is_preempted:
        return Cause.PREEMPTION, "preempted"
    if "SIGUSR1" in evidence.signals and evidence.signals[0] != "SIGTERM":
        return Cause.TIME_LIMIT, "the time limit is near"
    if evidence.job_state == "RUNNING" and evidence.is_near_limit:
        return Cause.TIME_LIMIT, "the time limit is near"  # the job's --signal may be any signal
    if evidence.job_state == "RUNNING":
        what = evidence.signals[0] if evidence.signals else "a stop signal to a rank"
        return Cause.MANUAL_STOP, f"{what} was sent by hand: Slurm does not preempt the job"
    return Cause.PREEMPTION, "preempted, or stopped by hand"


def decide_lost(
    evidence: Evidence, used: BudgetUsed, budget: Budget, is_automatic: bool
) -> Decision:
    """Return the decision about an attempt whose batch script was killed, at the job's next start.

    `is_automatic`: the job starts without a user's request, so the budgets count. Where a user
    submitted it, the run stood still until then, and the budgets begin again.
    """
    if evidence.outcome == "completed":
        return COMPLETED
    if not is_automatic:
        return Decision(Action.HOLD, Cause.LOST, LOST_REASON)
    cause, reason = Cause.LOST, LOST_REASON
    if evidence.unreachable_nodes:
        cause, reason = Cause.NODE, no_answer(evidence)
    elif evidence.rebooted_nodes:
        nodes = ", ".join(evidence.rebooted_nodes)
        cause, reason = Cause.NODE, f"rebooted after the attempt began: {nodes}"
    return _within_budget(Decision(Action.RETRY, cause, reason), evidence, used, budget)


def within_budget(
    decision: Decision, evidence: Evidence, used: BudgetUsed, budget: Budget
) -> Decision:
    """Return `decision`, or a hold where a budget is used up."""
    if decision.action in (Action.HOLD, Action.CANCEL):
        return decision
    return _within_budget(decision, evidence, used, budget)


def _within_budget(
    decision: Decision, evidence: Evidence, used: BudgetUsed, budget: Budget
) -> Decision:
    idle = 0 if evidence.has_progress else used.attempts_without_progress + 1
    is_counted = is_idle(decision.cause, evidence, used.bad_nodes, budget.num_nodes)
    if is_counted and idle >= budget.attempts_without_progress:
        reason = f"{idle} attempts without a new checkpoint, the last one: {decision.reason}"
        return Decision(Action.HOLD, decision.cause, reason, Kind.NO_PROGRESS)
    limits = used.time_limits_without_step + 1
    is_too_short = decision.cause is Cause.TIME_LIMIT and not evidence.has_step
    if is_too_short and limits >= budget.time_limits_without_step:
        reason = (
            f"{limits} time limits in a row before the first optimizer step was finished: "
            "raise slurm.time"
        )
        return Decision(Action.HOLD, decision.cause, reason, Kind.SHORT_TIME_LIMIT)
    if is_restart(decision.action, decision.cause) and used.restarts >= budget.restarts:
        reason = f"{used.restarts} restarts are used up, the last one: {decision.reason}"
        return Decision(Action.HOLD, decision.cause, reason, Kind.MAX_RESTARTS)
    return decision


def is_idle(cause: str, evidence: Evidence, known_bad: frozenset[str], num_nodes: int) -> bool:
    """Return whether an attempt without a new checkpoint counts as one.

    Not where it found a bad node that no attempt before it had found: the next start leaves that
    node out. In a large cluster a run may get another bad node at each of many starts. But where
    MANY_BAD_NODES are known, and as many as the job has nodes, the test itself may be wrong.
    """
    is_further = not known_bad.issuperset(evidence.bad_nodes)
    are_few = len(known_bad) < max(MANY_BAD_NODES, num_nodes)
    return cause not in EXTERNAL_STOPS and not (is_further and are_few)


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
    if last.decision is Action.HOLD and last.requeue is RequeueAnswer.NO_ANSWER:
        return None
    if not is_automatic_start(job_id, last.job_id, predecessor):
        return None
    return f"{last.decision}: {last.reason}"


def budget_used(attempts: Sequence[AttemptRecord]) -> BudgetUsed:
    """Return what counts against the budgets since the last hold or cancel: then a user resumed."""
    crashes = restarts = limits = 0
    may_count_crashes = may_count_idle = may_count_limits = True
    without_progress: list[AttemptRecord] = []
    for entry in reversed(attempts):
        if entry.decision in ENDS:
            break
        has_progress = entry.evidence.has_progress
        may_count_idle = may_count_idle and not has_progress
        without_progress += [entry] if may_count_idle else []
        crashes += may_count_crashes and entry.cause in CRASHES
        may_count_crashes = may_count_crashes and not has_progress
        may_count_limits = (
            may_count_limits and entry.cause is Cause.TIME_LIMIT and not entry.evidence.has_step
        )
        limits += may_count_limits
        restarts += is_restart(entry.decision, entry.cause)
    idle, bad_nodes = 0, frozenset[str]()
    for entry in reversed(without_progress):
        idle += is_idle(entry.cause, entry.evidence, bad_nodes, len(entry.nodes or ()))
        bad_nodes |= {*entry.evidence.bad_nodes}
    row = _crashes(attempts)
    failures = tuple(seen.failure for seen in row if seen.failure is not None)
    repeats = sum(1 for _ in itertools.takewhile(lambda seen: seen.is_repeat, row))
    return BudgetUsed(restarts, crashes, idle, limits, bad_nodes, failures, repeats)


def _crashes(attempts: Sequence[AttemptRecord]) -> list[Evidence]:
    """Return the crashes since a user resumed or an attempt that did not crash had progress.

    The newest comes first. Attempts that ended otherwise and without progress are passed over.
    """
    row: list[Evidence] = []
    for entry in reversed(attempts):
        is_crash = entry.cause in CRASHES
        if entry.decision in ENDS or (entry.evidence.has_progress and not is_crash):
            break
        row += [entry.evidence] if is_crash else []
    return row


def budget_of(spec: Spec) -> Budget:
    """Return the budgets that the spec sets."""
    limits = spec.slurm.max_restarts, spec.launch.max_crashes
    return Budget(*limits, num_nodes=spec.slurm.most_nodes)
