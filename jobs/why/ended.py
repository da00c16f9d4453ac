"""Why an attempt ended and what delayed it: pure functions of what `evidence` read."""

from __future__ import annotations

from slurm_job_kit.jobs.attempt.decision import CRASHES, LOST_REASON
from slurm_job_kit.jobs.kinds import Kind
from slurm_job_kit.jobs.known_causes import KNOWN_CAUSES
from slurm_job_kit.jobs.records.ended import Cause, Evidence
from slurm_job_kit.jobs.runs import interpret
from slurm_job_kit.jobs.runs.interpret import AttemptFacts
from slurm_job_kit.jobs.why.answer import Reason
from slurm_job_kit.jobs.why.evidence import Ended

# Causes from outside, which the record alone shows.
OUTSIDE = {
    Cause.TIME_LIMIT: (Kind.TIME_LIMIT, "the time limit was reached, or its warning came"),
    Cause.MANUAL_STOP: (Kind.MANUAL_STOP, "a stop signal was sent by hand; Slurm did not preempt"),
    Cause.INTERRUPTED: (Kind.INTERRUPTED, "Ctrl-C, a closed terminal or cancel stopped the run"),
    Cause.PREEMPTION: (Kind.PREEMPTION, "Slurm preempted the job"),
}
# The beginning of the sentence about a rank's error.
INTRODUCTIONS = {
    **{cause.kind: cause.what for cause in KNOWN_CAUSES if cause.is_plain},
    Kind.USER_CODE: "the user's code failed",
    Kind.IMPORT_ERROR: "an import failed",
    Kind.SPEC_MISTAKE: "the spec or the launch has a mistake",
    Kind.DISK_FULL: "the disk is full",
    Kind.QUOTA: "the quota of the disk is used up",
    Kind.READ_ONLY: "the directory cannot be written",
    Kind.DISK_ERROR: "the disk or its server failed",
    Kind.RUN_DIRECTORY_GONE: "the run directory was moved away or deleted",
    Kind.FILES_MISSING: "files are missing",
    Kind.COLLECTIVE: "an exchange between the ranks failed (NCCL or gloo)",
    Kind.GPU_ERROR: "a GPU failed",
    Kind.NOT_FINITE: "the training diverged",
    Kind.PROCESS_KILLED: "a process was killed",
    Kind.SUPERSEDED: "another attempt owns the run",
}
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


def reasons_of(ended: Ended) -> list[Reason]:
    """What ended an attempt, then what else delayed the run in it; [] if nothing did."""
    record = ended.record
    found = [] if record.cause is Cause.COMPLETED else [cause_of(ended)]
    numbers = (record.attempt,)
    seen = record.evidence
    if is_unsaved(seen, record.cause):
        text = "the job was warned and ended before it could save: raise slurm.signal_lead_s"
        found.append(Reason(Kind.NOT_SAVED, text, ended.place, numbers))
    if seen.slurmctld_away_s is not None:
        text = f"slurmctld did not answer for {seen.slurmctld_away_s:.0f} s"
        found.append(Reason(Kind.SLURMCTLD_AWAY, text, ended.place, numbers))
    for each in ended.quarantined:
        text = f"checkpoint {each.name} is damaged and was put aside: {each.reason}"
        found.append(Reason(Kind.DAMAGED_CHECKPOINT, text, each.place, numbers))
    return found


def is_unsaved(seen: Evidence, cause: Cause) -> bool:
    """Whether a warned attempt lost steps: the save did not fit into the time that it had."""
    is_stop = cause in OUTSIDE or cause in (Cause.REQUEUED, Cause.LOST)
    return is_stop and bool(seen.signals) and seen.outcome is None and seen.has_step


def cause_of(ended: Ended) -> Reason:
    """What ended an attempt that did not complete the run."""
    record = ended.record
    if record.cause in (*CRASHES, Cause.LOST):
        return failure_of(ended)
    if record.cause is Cause.NODE:
        return node_reason(ended)
    kind, text = stop_of(ended)
    return Reason(kind, text, ended.place, (record.attempt,))


def stop_of(ended: Ended) -> tuple[Kind, str]:
    """What stopped an attempt from outside."""
    record = ended.record
    if record.cause is Cause.CANCELLED:
        if ended.end_state == "PREEMPTED":
            return Kind.PREEMPTION, "Slurm preempted the job and cancelled it"
        unclear = ended.end_state is None and record.evidence.is_preempted
        more = ", perhaps by the preemption that had begun" if unclear else ""
        return Kind.CANCELLED, f"the job was cancelled{more}"
    if record.cause is Cause.REQUEUED:
        if record.evidence.job_state in BY_STATE:
            return BY_STATE[record.evidence.job_state]
        return Kind.REQUEUED, (
            "Slurm started the job again: a preemption without grace, or an administrator's "
            "requeue (Slurm does not show which)"
        )
    return OUTSIDE[record.cause]


def node_reason(ended: Ended) -> Reason:
    """Why a node ended an attempt."""
    seen, numbers = ended.record.evidence, (ended.record.attempt,)
    if seen.bad_nodes:
        text = f"node {', '.join(seen.bad_nodes)} failed the preflight"
        if seen.error:
            text += f": {seen.error}"
        return Reason(Kind.BAD_NODE, text, ended.failure or ended.place, numbers)
    lost = seen.unreachable_nodes or seen.rebooted_nodes
    what = "does not answer" if seen.unreachable_nodes else "was rebooted"
    text = f"node {', '.join(lost)} {what}"
    return Reason(Kind.NODE_FAILURE, text, ended.place, numbers)


def failure_of(ended: Ended) -> Reason:
    """Why an attempt failed from inside, or ended without a record."""
    seen, numbers = ended.record.evidence, (ended.record.attempt,)
    if seen.is_hang:
        text = f"a hang: {seen.error}" if ended.hang is None else f"a hang: {ended.hang.error}"
        return Reason(Kind.HANG, text, ended.hang_place or ended.place, numbers)
    if seen.is_out_of_memory:
        is_device = ended.failed is not None and ended.failed.kind is Kind.GPU_OUT_OF_MEMORY
        kind = Kind.GPU_OUT_OF_MEMORY if is_device else Kind.OUT_OF_MEMORY
        text = f"{'a GPU' if is_device else 'a node'} has too little memory: {seen.error}"
        return Reason(kind, text, ended.failure or ended.place, numbers)
    if ended.agent_error is not None:
        text = f"a node did not start torchrun: {seen.error}"
        kind = seen.kind or Kind.SPEC_MISTAKE
        return Reason(kind, text, ended.agent_error, numbers)
    if ended.failed is not None and not ended.failed.caused_by_peer:
        kind = ended.failed.kind
        what = INTRODUCTIONS.get(kind, "a rank failed")
        text = f"{what}: {interpret.format_error(ended.failed)}"
        return Reason(kind, text, ended.failure, numbers)
    if ended.disk is not None:
        kind, place = ended.disk
        return Reason(kind, f"{INTRODUCTIONS[kind]}, and no rank could record it", place, numbers)
    if ended.record.cause is Cause.LOST:
        return lost_reason(ended)
    return without_own_error(ended)


def lost_reason(ended: Ended) -> Reason:
    """Why there was no record of an attempt, where no rank shows a failure."""
    numbers = (ended.record.attempt,)
    if ended.was_recorded:
        text = "attempts.jsonl was deleted, and with it the record of how the attempt ended"
        return Reason(Kind.FILES_MISSING, text, ended.place, numbers)
    return Reason(Kind.BATCH_SCRIPT_KILLED, LOST_REASON, ended.place, numbers)


def without_own_error(ended: Ended) -> Reason:
    """Why an attempt failed in which ranks only lost their peers, or recorded nothing."""
    seen, numbers = ended.record.evidence, (ended.record.attempt,)
    error = seen.error or "no process recorded an error"
    place = ended.failure or ended.place
    unstarted = ended.found is not None and ended.found.unstarted
    if unstarted and seen.kind is None:
        return Reason(Kind.SPEC_MISTAKE, f"a node did not start: {error}", place, numbers)
    if seen.kind is not None and ended.failed is None:
        return Reason(seen.kind, f"a node did not train: {error}", place, numbers)
    has_left = ended.found is not None and error == interpret.ranks_that_left(ended.found)
    if seen.mistake == "code" or has_left:  # it exited with 0 behind its error, or too early
        return Reason(Kind.USER_CODE, f"{INTRODUCTIONS[Kind.USER_CODE]}: {error}", place, numbers)
    if ended.found is not None and is_killed(ended.found):
        return Reason(Kind.PROCESS_KILLED, f"a process was killed: {error}", place, numbers)
    if ended.failed is not None:
        text = f"{INTRODUCTIONS[Kind.COLLECTIVE]}: {error}"
        return Reason(Kind.COLLECTIVE, text, place, numbers)
    return Reason(Kind.UNKNOWN, error, place, numbers)


def is_killed(found: AttemptFacts) -> bool:
    """Whether a rank, a torchrun or an agent of the attempt died without its record."""
    if interpret.ranks_without_record(found) is not None:
        return True
    agents = found.agents
    return any(
        each is None or each.torchrun_exit is None or each.torchrun_exit < 0 for each in agents
    )
