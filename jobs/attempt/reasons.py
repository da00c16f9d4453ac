"""Names what ended an attempt and what delayed the run in it, for the attempt's record.

`why` prints what is recorded here. Nothing is searched for that a process of the kit has recorded:
only of a disk that kept a rank from its error record, a log has the reason.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from pathlib import Path

from .. import records, shared_files
from ..errors import RUN_DIR_FAULTS
from ..kinds import KINDS, OF_MEMORY, Kind
from ..records import RecordError
from ..records.ended import AttemptRecord, Cause, Evidence, NamedReason
from ..records.frozen import Provenance
from ..records.nodes import HangConclusion, RankError, RankHang
from ..records.training import read_events
from ..rundir import AttemptDir, RunDir
from ..runs import fact_reader, interpret, places
from ..runs.interpret import AttemptFacts
from ..runs.places import CodeFolders, FileLine
from .decision import CRASHES, LOST_REASON

# A run directory that is full or gone: what libc calls these errors.
DISK_TEXTS: dict[str, Kind] = {
    os.strerror(number): RUN_DIR_FAULTS[number]
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENOENT, errno.EIO, errno.ESTALE)
}
_TIME = r"^(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d )?"
# An error of the batch script or of `attempt.open`, not of a rank, of srun or of slurmstepd.
OWN_ERROR = re.compile(_TIME + r"error: (.+)")
# An error that ends a rank. Source: trainer.errors.report.
RANK_ERROR = re.compile(_TIME + r"trainer: (?:a rank|rank \d+) on \S+: error: ")
# Slurm's state of a job that it ended itself.
BY_STATE = {
    "TIMEOUT": (Kind.TIME_LIMIT, "the time limit ended the job"),
    "DEADLINE": (Kind.TIME_LIMIT, "the job's deadline ended it"),
    "NODE_FAIL": (Kind.NODE_FAILURE, "Slurm ended the job because a node failed"),
    "BOOT_FAIL": (Kind.NODE_FAILURE, "a node of the job did not boot"),
    "PREEMPTED": (Kind.PREEMPTION, "Slurm preempted the job"),
    "OUT_OF_MEMORY": (Kind.OUT_OF_MEMORY, "a process of the job exceeded the memory of the job"),
    "CANCELLED": (Kind.CANCELLED, "the job was cancelled"),
}


def reasons_of(
    run_dir: RunDir, facts: AttemptFacts, record: AttemptRecord
) -> tuple[NamedReason, ...]:
    """Return what ended an attempt, then what else delayed the run in it; () if nothing did.

    facts: of the same attempt. record: without its reasons. Raises: RecordError, OSError.
    """
    return () if record.cause is Cause.COMPLETED else (cause_of(run_dir, facts, record),)


def at(kind: Kind, text: str, place: FileLine | None) -> NamedReason:
    """Return a reason with its place."""
    return NamedReason(kind, text, *((str(place.path), place.line) if place else (None, None)))


def cause_of(run_dir: RunDir, facts: AttemptFacts, record: AttemptRecord) -> NamedReason:
    """Return what ended an attempt that did not complete the run."""
    if record.cause in (*CRASHES, Cause.LOST):
        return failure_of(run_dir, facts, record)
    if record.cause is Cause.NODE:
        return node_reason(run_dir, facts, record)
    return NamedReason(*stop_of(record))


def stop_of(record: AttemptRecord) -> tuple[Kind, str]:
    """Return what stopped an attempt from outside."""
    if record.cause is Cause.CANCELLED:
        more = ", perhaps by the preemption that had begun" if record.evidence.is_preempted else ""
        return Kind.CANCELLED, f"the job was cancelled{more}"
    if record.cause is Cause.REQUEUED and record.evidence.job_state in BY_STATE:
        return BY_STATE[record.evidence.job_state]
    kind = Kind(record.cause)  # these have the same names
    return kind, KINDS[kind].what


def node_reason(run_dir: RunDir, facts: AttemptFacts, record: AttemptRecord) -> NamedReason:
    """Return why a node ended an attempt."""
    evidence = record.evidence
    suspects = [sign for sign in evidence.signs if sign.is_left_out]
    if suspects and suspects[0].kind is not Kind.NODE_FAILURE:
        kind, nodes = suspects[0].kind, ", ".join(sign.node for sign in suspects)
        what = "failed the preflight" if kind is Kind.BAD_NODE else "is left out"
        text = f"node {nodes} {what}: {evidence.error or suspects[0].text}"
        return at(kind, text, failure_place(run_dir, facts))
    if lost := evidence.unreachable_nodes or evidence.rebooted_nodes:
        what = "does not answer" if evidence.unreachable_nodes else "was rebooted"
        return NamedReason(Kind.NODE_FAILURE, f"node {', '.join(lost)} {what}")
    return NamedReason(Kind.NODE_FAILURE, "; ".join(f"{s.node}: {s.text}" for s in suspects))


def failure_of(run_dir: RunDir, facts: AttemptFacts, record: AttemptRecord) -> NamedReason:
    """Return why an attempt failed from inside, or ended without a record."""
    evidence, failed = record.evidence, interpret.first_error(facts.errors)
    place = failure_place(run_dir, facts)
    if evidence.kind is Kind.HANG:
        hang, where = _hang_of(run_dir, run_dir.attempt(facts.attempt))
        return at(Kind.HANG, f"a hang: {evidence.error if hang is None else hang.error}", where)
    if (of_agent := _agent_error(run_dir.attempt(facts.attempt), facts)) is not None:
        return at(
            evidence.kind or Kind.SPEC_MISTAKE,
            f"a node did not start torchrun: {evidence.error}",
            of_agent,
        )
    if evidence.kind in OF_MEMORY:
        return at(evidence.kind, f"{KINDS[evidence.kind].what}: {evidence.error}", place)
    if failed is not None and not failed.caused_by_peer:
        what = KINDS[failed.kind].what
        return at(failed.kind, f"{what}: {interpret.format_error(failed)}", place)
    if failed is None and (disk := _disk_of(run_dir, facts.attempt)) is not None:
        kind, of_disk = disk
        return at(kind, f"{KINDS[kind].what}, and no rank could record it", of_disk)
    if record.cause is Cause.LOST:
        return lost_reason(run_dir, facts.attempt)
    return without_own_error(facts, evidence, failed, place)


def lost_reason(run_dir: RunDir, attempt: int) -> NamedReason:
    """Return why there was no record of an attempt, where no rank shows a failure."""
    events = read_events(run_dir.timeline("attempt"))
    if any((event.attempt, event.event) == (attempt, "close") for event in events):
        text = "attempts.jsonl was deleted, and with it the record of how the attempt ended"
        return NamedReason(Kind.FILES_MISSING, text)
    return NamedReason(Kind.BATCH_SCRIPT_KILLED, LOST_REASON)


def without_own_error(
    facts: AttemptFacts, evidence: Evidence, failed: RankError | None, place: FileLine | None
) -> NamedReason:
    """Return why an attempt failed in which ranks only lost their peers, or recorded nothing."""
    error = evidence.error or "no process recorded an error"
    if facts.unstarted and evidence.kind is None:
        return at(Kind.SPEC_MISTAKE, f"a node did not start: {error}", place)
    if evidence.kind is not None and failed is None:
        return at(evidence.kind, f"a node did not train: {error}", place)
    has_left = error == interpret.ranks_that_left(facts)
    if evidence.mistake == "code" or has_left:  # it exited with 0 behind its error, or too early
        return at(Kind.USER_CODE, f"{KINDS[Kind.USER_CODE].what}: {error}", place)
    if is_killed(facts):
        return at(Kind.PROCESS_KILLED, f"a process was killed: {error}", place)
    if failed is not None:
        return at(Kind.COLLECTIVE, f"{KINDS[Kind.COLLECTIVE].what}: {error}", place)
    return at(Kind.UNKNOWN, error, place)


def is_killed(facts: AttemptFacts) -> bool:
    """Return whether a rank, a torchrun or an agent of the attempt died without its record."""
    if interpret.ranks_without_record(facts) is not None:
        return True
    agents = facts.agents
    return any(
        each is None or each.torchrun_exit is None or each.torchrun_exit < 0 for each in agents
    )


def failure_place(run_dir: RunDir, facts: AttemptFacts) -> FileLine | None:
    """Return where the first error was raised in the user's code, else the log that has it."""
    failed, attempt_dir = interpret.first_error(facts.errors), run_dir.attempt(facts.attempt)
    if failed is None:
        return FileLine(run_dir.job_log) if dict(facts.last_words).get("") else None
    trace = failed.traceback
    frame = places.users_frame(trace, code_of(run_dir)) if trace else None
    return frame or FileLine(attempt_dir.rank_log(failed.rank))


def code_of(run_dir: RunDir) -> CodeFolders:
    """Return the folders of a run's code."""
    repository = None
    with contextlib.suppress(RecordError, OSError):
        provenance = records.read(Provenance, run_dir.provenance)
        repository = None if provenance is None else provenance.repository
    return places.code_folders(run_dir, repository)


def _agent_error(attempt_dir: AttemptDir, facts: AttemptFacts) -> FileLine | None:
    if facts.agent_errors:
        return next(
            (
                FileLine(path, 1)
                for path in map(attempt_dir.agent_error, range(len(facts.nodes)))
                if shared_files.exists(path) and path.stat().st_size
            ),
            None,
        )
    ranks = (
        rank
        for rank, agent in enumerate(facts.agents)
        if agent is not None and agent.error is not None
    )
    rank = next(ranks, None)
    return None if rank is None else FileLine(attempt_dir.agent(rank))


def _disk_of(run_dir: RunDir, attempt: int) -> tuple[Kind, FileLine] | None:
    """Return what a disk did to an attempt without an error record, by the rank and job logs."""
    logs = sorted(shared_files.files_in(run_dir.attempt(attempt).path, "rank-*.log"))
    for log in logs[: fact_reader.MAX_LOGS]:
        if (fault := places.disk_fault_in(places.tail(log), RANK_ERROR, DISK_TEXTS)) is not None:
            return fault
    of_attempt = places.attempt_lines(places.tail(run_dir.job_log), attempt)
    about_the_run = [line for line in of_attempt if run_dir.run_id in line.text]
    return places.disk_fault_in(about_the_run, OWN_ERROR, DISK_TEXTS)


def _hang_of(
    run_dir: RunDir, attempt_dir: AttemptDir
) -> tuple[HangConclusion | None, FileLine | None]:
    """Return the conclusion about a hang, and where the rank is for which the others wait."""
    try:
        hang = records.read(HangConclusion, attempt_dir.hang)
    except RecordError:  # empty: the rank that found the hang ended before its conclusion
        return None, FileLine(attempt_dir.hang)
    if hang is None:
        return None, None
    for rank in hang.waited_for:
        state = records.read(RankHang, attempt_dir.rank_hang(rank))
        if state is not None:
            path, _, line = state.where.partition(" ")[0].rpartition(":")
            file = places.users_file(Path(path), code_of(run_dir)) if path else None
            if file is not None and line.isdecimal():
                return hang, FileLine(file, int(line))
            return hang, FileLine(attempt_dir.rank_hang(rank))
    return hang, FileLine(attempt_dir.hang)
