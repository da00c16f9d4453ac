"""Writes what a run keeps of its attempts: attempts.jsonl, result.json, the attempts' timeline.

`jobs.runs.run_lock` decides which job may write there.
"""

import contextlib
import time
from dataclasses import replace
from typing import Any

from ..base.console import BestEffort
from ..base.errors import UserError
from ..contract import records
from ..contract.kinds import Kind
from ..contract.records.ended import ENDS, Action, AttemptRecord, Cause, Times, Why
from ..contract.records.timeline import Timeline
from ..contract.rundir import RunDir
from ..runs.facts import AttemptFacts
from ..runs.results import result_of
from ..slurm.job import RequeueResult
from .decision import Decision
from .ending import Ending
from .reasons import with_reason


def record(
    run_dir: RunDir, facts: AttemptFacts, ending: Ending, decision: Decision
) -> AttemptFacts:
    """Append the record of an attempt to attempts.jsonl; returns the facts with it."""
    entry = record_of(facts, ending, decision, time.time())
    # A damaged file, or a disk, keeps no decision from its record.
    with contextlib.suppress(UserError), BestEffort("attempt")():
        entry = with_reason(run_dir, facts, ending, entry, decision.kind)
    records.append(run_dir.attempts, entry)
    return replace(facts, attempts=(*facts.attempts, entry))


def amend(
    run_dir: RunDir, facts: AttemptFacts, decision: Decision, requeued: RequeueResult | None = None
) -> AttemptFacts:
    """Append a record that corrects the newest one: its decision could not be carried out.

    `requeued`: what Slurm did with the requeue that the newest record decided on.
    """
    if facts.last is None:  # lost to a scratch purge
        return facts
    entry = corrected_record(facts.last, decision, requeued)
    records.append(run_dir.attempts, entry)
    return replace(facts, attempts=(*facts.attempts[:-1], entry))


def write_result(run_dir: RunDir, facts: AttemptFacts, decision: Decision) -> AttemptFacts:
    """Write result.json of a run that ends by this decision; returns the facts with it.

    The result of a complete run is never replaced.
    """
    if facts.result is not None and facts.result.status == "completed":
        return facts
    result = result_of(facts, decision.action, decision.reason)
    records.write(run_dir.result, result)
    return replace(facts, result=result)


def record_end(
    run_dir: RunDir, facts: AttemptFacts, action: Action, cause: Cause, reason: str
) -> AttemptFacts:
    """End a run after its newest attempt: correct that attempt's record and write the result.

    Returns the facts with both.

    `cause`: where no attempt was closed yet; else the cause of the last one stays.
    """
    last = facts.last
    decision = Decision(action, cause if last is None else last.cause, reason)
    if last is not None and last.decision not in ENDS:
        facts = amend(run_dir, facts, decision)
    return write_result(run_dir, facts, decision)


def note(run_dir: RunDir, attempt: int, event: str, **fields: Any) -> None:
    """Add an event to the attempts' timeline if possible; no decision depends on it."""
    with BestEffort("attempt")():
        Timeline(run_dir, "attempt", attempt).event(event, **fields)


def record_of(facts: AttemptFacts, ending: Ending, decision: Decision, now: float) -> AttemptRecord:
    """Return the line of attempts.jsonl for an ended attempt; `now`: seconds since the epoch."""
    begun = None if facts.plan is None else facts.plan.start
    return AttemptRecord(
        attempt=facts.attempt,
        job_id=None if facts.plan is None else facts.plan.job_id,
        nodes=None if facts.plan is None else facts.plan.nodes,
        times=Times(begun, round(now, 3), ending.stop_s),
        cause=decision.cause,
        first_step=ending.steps[0],
        last_step=ending.steps[1],
        checkpoint=facts.saved.checkpoint,
        quarantined=ending.quarantined,
        decision=decision.action,
        reason=decision.reason,
        evidence=ending.evidence,
        why=Why(budget=decision.budget),
        code=None if facts.plan is None else facts.plan.code,
    )


def corrected_record(
    last: AttemptRecord, decision: Decision, requeued: RequeueResult | None
) -> AttemptRecord:
    """Return the record of an attempt whose decision could not be carried out.

    `requeued`: what Slurm did with the requeue that the record decided on.
    """
    evidence = last.evidence
    if requeued is not None and requeued.job is not None:
        evidence = replace(evidence, job_state=requeued.job.state, job_reason=requeued.job.reason)
    return replace(
        last,
        cause=decision.cause,
        decision=decision.action,
        reason=decision.reason,
        evidence=evidence,
        why=replace(
            last.why,
            requeue=None if requeued is None else requeued.answer,
            kind=last.why.kind if decision.cause is last.cause else Kind.CANCELLED,
            budget=decision.budget,
        ),
    )
