"""What the attempts of a run left behind: records, budgets used, result.

All of it lies in the run directory; `jobs.attempt.run_lock` says who may write there.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from jobs import records
from jobs.attempt import facts, interpret
from jobs.attempt.decision import (
    COMPLETED,
    CRASHES,
    EXTERNAL_STOPS,
    LOST_REASON,
    Budget,
    Decision,
    History,
    after_loss,
    format_decision,
    is_restart,
)
from jobs.attempt.interpret import ENDS, AttemptFacts
from jobs.attempt.run_lock import Owner
from jobs.attempt.srun_step import unreachable_nodes
from jobs.console import BestEffort, say
from jobs.records import (
    Action,
    AttemptRecord,
    Cause,
    Evidence,
    RequeueAnswer,
    Result,
)
from jobs.rundir import RunDir, Timeline
from jobs.slurm.client import Requeued
from jobs.spec import Spec


def newest_opened(run_dir: RunDir) -> int:
    """The number of the newest attempt by its folder's files, of which none is read; 0 for none."""
    files = (run_dir.path.glob(f"attempt-*/{name}.json") for name in ("plan", "agent-*"))
    opened = (int(path.parent.name.partition("-")[2]) for path in chain.from_iterable(files))
    return max(opened, default=0)


def newest_attempt(run_dir: RunDir) -> int:
    """The number of the newest attempt that was opened; 0 before the first.

    A scratch purge may have removed its files or its record, so both are looked at.
    """
    recorded = [record.attempt for record in records.read_attempts(run_dir)]
    return max([newest_opened(run_dir), *recorded])


def last_record(run_dir: RunDir) -> AttemptRecord | None:
    """The record of the newest attempt that was closed; None before the first."""
    attempts = records.read_attempts(run_dir)
    return attempts[-1] if attempts else None


def record(
    run_dir: RunDir, found: AttemptFacts, seen: Evidence, decision: Decision
) -> AttemptFacts:
    """Append the record of an attempt to attempts.jsonl; returns the facts with it."""
    first_step, last_step = interpret.steps_of(found)
    now = time.time()
    stop_s, start_s = interpret.times_of(found, bool(seen.signals), now)
    entry = AttemptRecord(
        attempt=found.attempt,
        job_id=None if found.plan is None else found.plan.job_id,
        nodes=None if found.plan is None else found.plan.nodes,
        start=None if found.plan is None else found.plan.start,
        stop=round(now, 3),
        cause=decision.cause,
        first_step=first_step,
        last_step=last_step,
        stop_s=stop_s,
        start_s=start_s,
        checkpoint=found.checkpoint,
        quarantined=interpret.newly_quarantined(found),
        decision=decision.action,
        reason=decision.reason,
        evidence=seen,
    )
    records.append(run_dir.attempts, entry)
    return replace(found, attempts=(*found.attempts, entry))


def amend(
    run_dir: RunDir,
    found: AttemptFacts,
    decision: Decision,
    requeued: Requeued | None = None,
) -> AttemptFacts:
    """Append a record that corrects the newest one: its decision could not be carried out.

    `requeued`: what became of the requeue that the newest record decided on.
    """
    last = found.last
    if last is None:  # lost to a scratch purge
        return found
    seen = last.evidence
    if requeued is not None and requeued.job is not None:
        job = requeued.job
        seen = replace(seen, job_state=job.state, job_reason=job.reason)
    corrected = replace(
        last,
        cause=decision.cause,
        decision=decision.action,
        reason=decision.reason,
        evidence=seen,
        requeue=None if requeued is None else requeued.answer,
    )
    records.append(run_dir.attempts, corrected)
    return replace(found, attempts=(*found.attempts[:-1], corrected))


def close_lost(
    run_dir: RunDir, found: AttemptFacts, me: Owner, predecessor: str | None
) -> AttemptFacts:
    """Record the attempt if it was lost; returns the facts with its record.

    Where the same job, or its successor, starts without a user's request the budgets count; where
    a user submitted another job, the run stood still until then, and they begin again.
    """
    if not interpret.is_lost(found):
        return found
    is_automatic = comes_by_itself(
        me, None if found.plan is None else found.plan.job_id, predecessor
    )
    seen = interpret.of_ranks(found, "LOST")
    if is_automatic and not me.is_local:  # has a node died, and the batch script with it?
        seen = replace(seen, silent_nodes=unreachable_nodes(found, found.nodes))
    if seen.outcome == "completed":
        decision = COMPLETED
    elif is_automatic:
        decision = after_loss(seen, of(found.attempts), budget_of(found.spec))
    else:
        decision = Decision(Action.HOLD, Cause.LOST, LOST_REASON)
    # Nothing else in job.log shows how that attempt ended.
    say(f"attempt {found.attempt}: {format_decision(decision)}")
    found = record(run_dir, found, seen, decision)
    is_over = decision.action in (Action.DONE, Action.HOLD)
    return write_result(run_dir, found, decision) if is_over else found


def comes_by_itself(me: Owner, before: str | None, predecessor: str | None) -> bool:
    """Whether this job takes over from the job `before` without a user's request.

    `predecessor`: the id of the job whose successor this job is.
    """
    return before is not None and before in (me.job_id, predecessor)


def refusal(last: AttemptRecord | None, me: Owner, predecessor: str | None) -> str | None:
    """Why this start of the job must not continue the run; None if it may.

    A job that was held or cancelled may still be started again: by Slurm, which requeues a job
    whose node is lost whatever the attempt decided, or by a requeue that came too late. Where
    slurmctld did not answer the request to requeue, this start is the requested one.
    """
    if last is None or last.decision not in ENDS:
        return None
    if last.decision is Action.HOLD and last.requeue is RequeueAnswer.NO_ANSWER:
        return None
    if not comes_by_itself(me, last.job_id, predecessor):
        return None
    return f"{last.decision}: {last.reason}"


def of(attempts: Sequence[AttemptRecord]) -> History:
    """What counts against the budgets, since the last hold or cancel: then a user resumed."""
    crashes = idle = restarts = limits = 0
    may_count_crashes = may_count_idle = may_count_limits = True
    for entry in reversed(attempts):
        if entry.decision in ENDS:
            break
        has_progress = entry.evidence.has_progress
        may_count_idle = may_count_idle and not has_progress
        idle += may_count_idle and entry.cause not in EXTERNAL_STOPS
        crashes += may_count_crashes and entry.cause in CRASHES
        may_count_crashes = may_count_crashes and not has_progress
        may_count_limits = (
            may_count_limits and entry.cause is Cause.TIME_LIMIT and not entry.evidence.has_step
        )
        limits += may_count_limits
        restarts += is_restart(entry.decision, entry.cause)
    return History(restarts, crashes, idle, limits)


def budget_of(spec: Spec) -> Budget:
    """How often a run is started again without a user's request."""
    return Budget(spec.slurm.max_restarts, spec.launch.max_crashes)


def is_complete(run_dir: RunDir) -> bool:
    """Whether the run has reached its end."""
    result = records.read(Result, run_dir.result)
    return result is not None and result.status == "completed"


def write_result(run_dir: RunDir, found: AttemptFacts, decision: Decision) -> AttemptFacts:
    """Write result.json of a run that ends with this decision; returns the facts with it.

    The result of a complete run is never replaced.
    """
    if found.result is not None and found.result.status == "completed":
        return found
    result = interpret.result_of(found, decision.action, decision.reason)
    records.write(run_dir.result, result)
    return replace(found, result=result)


def end_between(run_dir: RunDir, action: Action, cause: Cause, reason: str) -> None:
    """End a run between two attempts: the last one is not continued, whatever ended it.

    `cause`: where no attempt was closed yet.
    """
    end_run(run_dir, facts.read(run_dir, newest_attempt(run_dir)), action, cause, reason)


def end_run(
    run_dir: RunDir, found: AttemptFacts, action: Action, cause: Cause, reason: str
) -> None:
    """`end_between` with the facts of the newest attempt."""
    last = found.last
    decision = Decision(action, cause if last is None else last.cause, reason)
    if last is not None and last.decision not in ENDS:
        found = amend(run_dir, found, decision)
    write_result(run_dir, found, decision)


def note(run_dir: RunDir, attempt: int, event: str, **fields: Any) -> None:
    """Put an event into the attempts' timeline; nothing is decided by it, so it may fail."""
    with BestEffort("attempt")():
        Timeline(run_dir, "attempt", attempt).event(event, **fields)
