"""Writes what a run keeps of its attempts: attempts.jsonl, result.json, the attempts' timeline.

`jobs.runs.run_lock` decides which job may write there.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from slurm_job_kit.jobs import records, shared_files
from slurm_job_kit.jobs.attempt.decision import Decision
from slurm_job_kit.jobs.attempt.reasons import reasons_of
from slurm_job_kit.jobs.console import BestEffort
from slurm_job_kit.jobs.errors import UserError
from slurm_job_kit.jobs.kinds import Kind
from slurm_job_kit.jobs.records.ended import (
    ENDS,
    Action,
    AttemptRecord,
    Cause,
    Evidence,
    NamedReason,
)
from slurm_job_kit.jobs.rundir import RunDir, Timeline, write_atomic
from slurm_job_kit.jobs.runs import interpret
from slurm_job_kit.jobs.runs.interpret import AttemptFacts
from slurm_job_kit.jobs.slurm.client import Requeued


def record(
    run_dir: RunDir, found: AttemptFacts, seen: Evidence, decision: Decision
) -> AttemptFacts:
    """Append the record of an attempt to attempts.jsonl; returns the facts with it."""
    entry = record_of(found, seen, decision, time.time())
    # A damaged file, or a disk, keeps no decision from its record.
    with contextlib.suppress(UserError), BestEffort("attempt")():
        entry = replace(entry, reasons=reasons_of(run_dir, found, entry))
    records.append(run_dir.attempts, entry)
    return replace(found, attempts=(*found.attempts, entry))


def amend(
    run_dir: RunDir,
    found: AttemptFacts,
    decision: Decision,
    requeued: Requeued | None = None,
) -> AttemptFacts:
    """Append a record that corrects the newest one: its decision could not be carried out.

    `requeued`: what Slurm did with the requeue that the newest record decided on.
    """
    if found.last is None:  # lost to a scratch purge
        return found
    entry = corrected(found.last, decision, requeued)
    records.append(run_dir.attempts, entry)
    return replace(found, attempts=(*found.attempts[:-1], entry))


def write_result(run_dir: RunDir, found: AttemptFacts, decision: Decision) -> AttemptFacts:
    """Write result.json of a run that ends by this decision; returns the facts with it.

    The result of a complete run is never replaced.
    """
    if found.result is not None and found.result.status == "completed":
        return found
    result = interpret.result_of(found, decision.action, decision.reason)
    records.write(run_dir.result, result)
    return replace(found, result=result)


def end_run(
    run_dir: RunDir, found: AttemptFacts, action: Action, cause: Cause, reason: str
) -> AttemptFacts:
    """End a run after its newest attempt: correct that attempt's record and write the result.

    Returns the facts with both.

    `cause`: where no attempt was closed yet; else the cause of the last one stays.
    """
    last = found.last
    decision = Decision(action, cause if last is None else last.cause, reason)
    if last is not None and last.decision not in ENDS:
        found = amend(run_dir, found, decision)
    return write_result(run_dir, found, decision)


@contextlib.contextmanager
def reopened(run_dir: RunDir, found: AttemptFacts) -> Iterator[None]:
    """A block in which a complete run may have further attempts; if it fails, it is complete again.

    The record of the last attempt comes first: until result.json is gone the run stays complete.
    """
    text = shared_files.read_text(run_dir.result)
    last, reason = found.last, "all steps were done; a user resumed the run for more"
    if last is not None and last.decision is Action.DONE:
        amend(run_dir, found, Decision(Action.HOLD, last.cause, reason))
    run_dir.result.unlink()
    try:
        yield
    except BaseException:
        write_atomic(run_dir.result, text)
        if last is not None:
            records.append(run_dir.attempts, last)
        raise


def note(run_dir: RunDir, attempt: int, event: str, **fields: Any) -> None:
    """Add an event to the attempts' timeline if possible; no decision depends on it."""
    with BestEffort("attempt")():
        Timeline(run_dir, "attempt", attempt).event(event, **fields)


def record_of(found: AttemptFacts, seen: Evidence, decision: Decision, now: float) -> AttemptRecord:
    """The line of attempts.jsonl for an attempt that ended. `now`: seconds since the epoch."""
    first_step, last_step = interpret.steps_of(found)
    # A lost attempt ended at an unknown time, perhaps long before the start that records it.
    is_end_known = seen.job_state != interpret.LOST
    stop_s, start_s = interpret.times_of(found, bool(seen.signals) and is_end_known, now)
    return AttemptRecord(
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
        budget=decision.budget,
        code=None if found.plan is None else found.plan.code,
    )


def _cancelled(reasons: tuple[NamedReason, ...]) -> tuple[NamedReason, ...]:
    """The reasons of an attempt whose run was cancelled then: no step of it is done again."""
    kept = (each for each in reasons[1:] if each.kind is not Kind.NOT_SAVED)
    return (NamedReason(Kind.CANCELLED, "the job was cancelled"), *kept)


def corrected(last: AttemptRecord, decision: Decision, requeued: Requeued | None) -> AttemptRecord:
    """The record of an attempt whose decision could not be carried out.

    `requeued`: what Slurm did with the requeue that the record decided on.
    """
    seen = last.evidence
    if requeued is not None and requeued.job is not None:
        seen = replace(seen, job_state=requeued.job.state, job_reason=requeued.job.reason)
    return replace(
        last,
        cause=decision.cause,
        decision=decision.action,
        reason=decision.reason,
        evidence=seen,
        requeue=None if requeued is None else requeued.answer,
        reasons=last.reasons if decision.cause is last.cause else _cancelled(last.reasons),
        budget=decision.budget,
        not_requeued=decision.not_requeued or None,
    )
