"""Writes what a run keeps of its attempts: attempts.jsonl, result.json, the attempts' timeline.

`jobs.attempt.run_lock` decides which job may write there.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from slurm_job_kit.jobs import records, shared_files
from slurm_job_kit.jobs.attempt import interpret
from slurm_job_kit.jobs.attempt.decision import ENDS, Decision
from slurm_job_kit.jobs.attempt.interpret import AttemptFacts
from slurm_job_kit.jobs.console import BestEffort
from slurm_job_kit.jobs.records.ended import Action, Cause, Evidence
from slurm_job_kit.jobs.rundir import RunDir, Timeline, write_atomic
from slurm_job_kit.jobs.slurm.client import Requeued


def record(
    run_dir: RunDir, found: AttemptFacts, seen: Evidence, decision: Decision
) -> AttemptFacts:
    """Append the record of an attempt to attempts.jsonl; returns the facts with it."""
    entry = interpret.record_of(found, seen, decision, time.time())
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
    entry = interpret.corrected(found.last, decision, requeued)
    records.append(run_dir.attempts, entry)
    return replace(found, attempts=(*found.attempts[:-1], entry))


def write_result(run_dir: RunDir, found: AttemptFacts, decision: Decision) -> AttemptFacts:
    """Write result.json of a run that ends by this decision; returns the facts with it.

    The result of a complete run is never replaced.
    """
    if found.result is not None and found.result.status == "completed":
        return found
    result = interpret.result_of(found, decision)
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
