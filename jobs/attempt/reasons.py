"""Names what ended an attempt: its kind, the place in the user's code, the log that shows more."""

import contextlib
from dataclasses import replace
from pathlib import Path

from ..base.installation import command
from ..contract import records
from ..contract.kinds import KINDS, Kind
from ..contract.records import RecordError
from ..contract.records.ended import AttemptRecord, Cause, Why
from ..contract.records.frozen import Provenance
from ..contract.rundir import RunDir
from ..runs import places
from ..runs.facts import AttemptFacts
from .decision import CRASHES
from .ending import Ending

# Slurm's state of a job that it ended itself.
BY_STATE = {
    "TIMEOUT": Kind.TIME_LIMIT,
    "DEADLINE": Kind.TIME_LIMIT,
    "NODE_FAIL": Kind.NODE_FAILURE,
    "BOOT_FAIL": Kind.NODE_FAILURE,
    "PREEMPTED": Kind.PREEMPTION,
    "OUT_OF_MEMORY": Kind.OUT_OF_MEMORY,
    "CANCELLED": Kind.CANCELLED,
}


def with_reason(
    run_dir: RunDir,
    facts: AttemptFacts,
    ending: Ending,
    record: AttemptRecord,
    kind: Kind | None = None,
) -> AttemptRecord:
    """Return the record of an attempt with its kind, and with place and log where it failed.

    facts, ending: of the same attempt. kind: where the decision knew it.
    Raises: RecordError, OSError.
    """
    kind, failed = kind or kind_of(ending, record), ending.first
    place = log = None
    if record.cause in (*CRASHES, Cause.NODE, Cause.LOST):
        attempt_dir, hang = run_dir.attempt(facts.attempt), facts.of_nodes.hang
        log = attempt_dir.rank_log(0) if kind is Kind.HANG else run_dir.job_log
        if kind is Kind.HANG and hang is not None and hang.waited_for:
            place, log = hang.place, attempt_dir.rank_log(hang.waited_for[0])
        elif failed is not None:
            place = places.users_frame(failed.traceback, run_dir, _checkout_of(run_dir))
            log = attempt_dir.rank_log(failed.rank)
    log_name = None if log is None else str(log)
    why = replace(record.why, kind=kind, place=place, log=log_name)
    return replace(record, why=why)


def kind_of(ending: Ending, record: AttemptRecord) -> Kind:
    if record.cause in (*CRASHES, Cause.LOST):
        return ending.kind
    if record.cause is Cause.NODE:
        return Kind.NODE_FAILURE
    state = record.evidence.job_state
    if record.cause is Cause.REQUEUED and state in BY_STATE:
        return BY_STATE[state]
    return Kind(record.cause)  # the others have the same names


def _checkout_of(run_dir: RunDir) -> Path | None:
    """Return the folder from which a run's code was frozen."""
    with contextlib.suppress(RecordError, OSError):
        if (known := records.read(Provenance, run_dir.provenance)) and known.repository:
            return Path(known.repository)
    return None


def remedy_of(why: Why, run_id: str) -> tuple[str, str]:
    """Return what a person does after an attempt that ended a run, and the command for it.

    The budget decides where the cause itself is no mistake.
    """
    by_budget = [Kind.MAX_RESTARTS, Kind.NO_PROGRESS, Kind.NOT_REQUEUED]
    if why.kind in (Kind.NOT_SAVED, Kind.HANG):
        by_budget.remove(Kind.NO_PROGRESS)
    row = KINDS[why.budget if why.budget in by_budget else why.kind]
    return row.advice, command(row.command, run_id, row.change, *row.flags)


def hold_hint(why: Why, run_id: str) -> str:
    """Return what a user does after a hold, with the kind of the failure and its place."""
    place = "" if why.place is None else f" at {why.place}"
    log = "" if why.log is None else f", log {why.log}"
    return "{}{}{}: {}: {}".format(why.kind, place, log, *remedy_of(why, run_id))
