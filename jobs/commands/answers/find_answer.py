"""The answer for a whole run: pure functions of what `observation` read."""

from __future__ import annotations

import time
from dataclasses import replace

from ... import installation
from ...attempt.decision import CRASHES
from ...attempt.reasons import BY_STATE
from ...console import format_duration, quantity
from ...kinds import KINDS, Kind
from ...records.ended import ENDS, Action, Cause
from ...runs import interpret
from ...runs.places import FileLine
from ...runs.state import RunPhase
from ...slurm import job_state, pending, refusals
from ...slurm.client import Life
from ...slurm.pending import Wait
from ..views import live_progress
from .answer import Answer, Reason, group_reasons
from .observation import Observation
from .remedies import Remedy, remedy_of

# The kinds of a hold whose remedy is that of the budget: the cause itself is no mistake.
BUDGET_DECIDES = (Kind.MAX_RESTARTS, Kind.NOT_REQUEUED)


def answer_of(evidence: Observation) -> Answer:
    """Return why a run is in its state."""
    run = evidence.run
    if run.phase is RunPhase.COMPLETED:
        return of_completed(evidence)
    is_living = run.life is not None and run.life.is_alive is True and not run.is_ending
    if evidence.job is not None and is_living:
        return of_queued(evidence)
    if run.process is not None and run.phase is RunPhase.RUNNING:
        return of_running(evidence)
    if run.phase is RunPhase.UNKNOWN and run.life is not None and not has_end(evidence):
        return of_unknown(evidence, run.life)
    if run.files.mark is not None:  # a job that starts then is refused: that is no cause of its own
        return of_cancelled(evidence)
    if evidence.refusal is not None:
        return of_refused(evidence)
    if evidence.missing is not None:
        return of_missing(evidence)
    starts_again = (Action.REQUEUE, Action.WAIT)
    was_waiting = bool(evidence.ends) and evidence.ends[-1].record.decision in starts_again
    if was_waiting and evidence.end_state == "CANCELLED":
        return of_cancelled(evidence)  # between two starts, with no process of the run to record it
    if run.result is not None and run.result.status == "cancelled":
        return of_cancelled(evidence)
    if evidence.ends:
        return of_ended(evidence)
    return of_never_started(evidence)


def has_end(evidence: Observation) -> bool:
    """Return whether a file shows the end of the run, whatever is unknown of its job."""
    files = evidence.run.files
    is_recorded = interpret.is_end_recorded(files.last, files.job_id)
    return files.has_final_result or files.mark is not None or is_recorded


def of_completed(evidence: Observation) -> Answer:
    """Return the answer of a complete run: what delayed it."""
    result, attempts = evidence.run.result, quantity(len(evidence.newest.attempts), "attempt")
    step = None if result is None else result.global_step
    at = "" if step is None else f" at step {step}"
    text = f"nothing is wrong, the run is complete{at} after {attempts}"
    return of_state(
        evidence, Kind.COMPLETED, text, Remedy("nothing", "status"), delays_of(evidence)
    )


def of_queued(evidence: Observation) -> Answer:
    """Return the answer of a run whose job is queued or runs."""
    job = evidence.job
    assert job is not None
    if job.state not in job_state.KNOWN:
        text = f"Slurm calls job {evidence.job_id} {job.state}, a state that this kit does not know"
        return of_state(
            evidence, Kind.UNKNOWN, text, Remedy("look at it again", "why"), delays_of(evidence)
        )
    if job.state in job_state.WAITING:
        explained = pending.explain(job.reason)
        explained = f": {explained}" if explained else ""
        text = f"job {evidence.job_id} waits in the queue ({job.reason}){explained}"
        if job.reason == "BeginTime" and job.restarts and evidence.newest.site is not None:
            text += f", here {evidence.newest.site.requeue_delay_s} s"
        remedy = remedy_of_wait(job.reason)
        answer = of_state(evidence, Kind.PENDING, text, remedy, delays_of(evidence))
        is_held = pending.wait_of(job.reason) is Wait.UNTIL_RELEASED
        if not is_held and job.state not in job_state.HELD:
            return answer
        command = f"scontrol release {evidence.job_id}"
        return replace(answer, advice="release the job, which Slurm holds", command=command)
    if job.state == "SUSPENDED":
        text = f"Slurm has suspended job {evidence.job_id}: it goes on when the site resumes it"
        return of_state(evidence, Kind.PENDING, text, Remedy("wait", "status"), delays_of(evidence))
    return of_running(evidence)


def remedy_of_wait(reason: str) -> Remedy:
    """Return what to do about a job that waits for a reason."""
    wait = pending.wait_of(reason)
    if wait is Wait.NEVER_ENDS:
        change = "cancel it, then resume with what the reason names (resume takes KEY=VALUE)"
        return Remedy(change, "cancel")
    return Remedy("ask the site" if wait is Wait.UNTIL_SITE_ACTS else "wait", "status")


def of_unknown(evidence: Observation, life: Life) -> Answer:
    """Return the answer of a run of which this host cannot find out whether it still runs."""
    advice = life.hint
    if life.is_silent:
        advice = "ask again where Slurm answers (module load slurm, perhaps)"
    answer = of_reason(
        evidence, Reason(Kind.UNKNOWN, life.why), delays_of(evidence), Remedy(advice, "why")
    )
    return replace(answer, last_lines=())  # nothing in the log is the reason


def of_running(evidence: Observation) -> Answer:
    """Return the answer of a run that trains now, or starts or stops."""
    if evidence.job is not None and evidence.job.state in job_state.ENDING:
        text = f"job {evidence.job_id} is ending: Slurm waits for its processes"
        return of_state(evidence, Kind.RUNNING, text, Remedy("wait", "why"), delays_of(evidence))
    where = f"job {evidence.job_id}" if evidence.job is not None else "a process on this machine"
    state = (
        ""
        if evidence.job is None or evidence.job.state == "RUNNING"
        else f" ({evidence.job.state})"
    )
    has_failed = bool(evidence.ends) and evidence.ends[-1].record.cause in CRASHES
    text = "the run is running again" if has_failed else "nothing is wrong, the run is running"
    text += f" as {where}{state}"
    text += f" in attempt {max(evidence.newest.attempt, 1)}"
    if evidence.run.files.progress is not None:
        text += f": {live_progress.format_progress(evidence.run.files.progress)}"
    elif evidence.last_event is None:
        text += ": no rank has started yet"
    if evidence.last_event is not None:
        ago = format_duration(max(0.0, time.time() - evidence.last_event.t), 2)
        text += f"; rank 0's last event is {evidence.last_event.event}, {ago} ago"
    remedy = Remedy("nothing; the log shows more", "logs")
    return of_state(evidence, Kind.RUNNING, text, remedy, delays_of(evidence))


def of_refused(evidence: Observation) -> Answer:
    """Return the answer of a run whose last job ended before it began an attempt."""
    assert evidence.refusal is not None
    kind = Kind.REFUSED if evidence.missing is None else Kind.FILES_MISSING
    text = f"job {evidence.job_id} ended before it began an attempt: {evidence.refusal.text}"
    return of_reason(evidence, Reason(kind, text, evidence.refusal.place), delays_of(evidence))


def of_missing(evidence: Observation) -> Answer:
    """Return the answer of a run that lost files, perhaps to a scratch purge."""
    assert evidence.missing is not None
    text = str(evidence.missing).partition("\n")[0]
    return of_reason(evidence, Reason(Kind.FILES_MISSING, text), delays_of(evidence))


def of_cancelled(evidence: Observation) -> Answer:
    """Return the answer of a run that was cancelled, with the user who did it if that is known."""
    if evidence.run.files.mark is not None:
        place: FileLine | None = FileLine(evidence.run_dir.cancelled, 1)
        text = f"the run was cancelled by this kit's command cancel ({evidence.run.files.mark})"
    else:
        who = evidence.cancelled_by
        place = None if evidence.newest.result is None else FileLine(evidence.run_dir.result)
        by = f"user {who} (scancel)" if who else "scancel, or by an administrator"
        text = f"the job was cancelled by {by}"
    delays = [each for each in delays_of(evidence) if each.kind is not Kind.CANCELLED]
    return of_reason(evidence, Reason(Kind.CANCELLED, text, place), delays)


def of_ended(evidence: Observation) -> Answer:
    """Return the answer of a run that was held, or whose job ended without a result."""
    last = evidence.ends[-1]
    if last.record.cause is Cause.COMPLETED:
        return of_completed(evidence)
    main, *_ = last.reasons
    delays = [each for each in delays_of(evidence) if each != main]
    is_by_slurm = main.kind is Kind.BATCH_SCRIPT_KILLED and (evidence.end_state or "") in BY_STATE
    if is_by_slurm:  # the batch script could not record it
        kind, text = BY_STATE[evidence.end_state or ""]
        if kind is Kind.CANCELLED:
            return of_cancelled(evidence)
        main = replace(main, kind=kind, text=text)
    ended_as = "the run ended"
    if last.record.decision is Action.HOLD and not is_by_slurm:
        ended_as = "the run is held"
    elif last.record.decision not in ENDS and not is_by_slurm:
        ended_as = f"the run should have continued ({last.record.decision}), but has no job"
    at = (
        ""
        if evidence.run.files.progress is None
        else f" at step {evidence.run.files.progress.step}"
    )
    main = replace(main, text=f"{ended_as}{at}: {main.text}")
    budget = last.record.budget
    spec = evidence.newest.spec
    remedy = remedy_of(budget, spec) if budget in BUDGET_DECIDES else None
    if budget is Kind.NOT_REQUEUED:
        words = last.record.not_requeued or ""
        main = replace(main, text=f"{main.text}; not requeued: {words}") if words else main
        remedy = remedy if evidence.newest.spec.slurm.restart == "requeue" else after_refusal(words)
    return of_reason(evidence, main, delays, remedy)


def after_refusal(words: str) -> Remedy:
    """Return what to do if Slurm refused the successor job, too."""
    hint = refusals.hint(words)
    change = f"; if Slurm refuses it again, change {hint}" if hint else ""
    return Remedy(f"resume queues another job{change}")


def of_never_started(evidence: Observation) -> Answer:
    """Return the answer of a run without an attempt."""
    state = evidence.end_state
    if evidence.run.files.mark is not None or state == "CANCELLED":
        return of_cancelled(evidence)
    if state is not None:
        kind, text = BY_STATE.get(state, (Kind.UNKNOWN, f"job {evidence.job_id} is {state}"))
        return of_reason(evidence, Reason(kind, f"{text}, before it began an attempt"), [])
    text = "the run was frozen and never started"
    if evidence.job_id is not None:
        text = f"no attempt was recorded, and Slurm does not know job {evidence.job_id} any more"
    remedy = Remedy("start it")
    return of_state(evidence, Kind.NEVER_STARTED, text, remedy, [])


def delays_of(evidence: Observation) -> list[Reason]:
    """Return what ended or delayed each attempt, the oldest first."""
    reasons: list[Reason] = []
    for each in evidence.ends:
        reasons += each.reasons
        if (budget := each.record.budget) is not None:
            text = f"the run was held: {KINDS[budget].what}"
            reasons.append(Reason(budget, text, each.place, (each.record.attempt,)))
    return reasons


def of_state(
    evidence: Observation, kind: Kind, text: str, remedy: Remedy, delays: list[Reason]
) -> Answer:
    """Return the answer of a run in a state that needs no repair."""
    return Answer(
        kind, text, None, remedy.text, command_text(evidence, remedy), group_reasons(delays)
    )


def of_reason(
    evidence: Observation, main: Reason, delays: list[Reason], remedy: Remedy | None = None
) -> Answer:
    """Return the answer of a run that ended: its cause, and what a person does about it."""
    remedy = remedy or remedy_of(main.kind, evidence.newest.spec)
    is_unknown = main.kind is Kind.UNKNOWN
    return Answer(
        main.kind,
        main.text,
        main.place,
        remedy.text,
        command_text(evidence, remedy),
        group_reasons(delays),
        tuple(line.text for line in evidence.last_lines) if is_unknown else (),
    )


def command_text(evidence: Observation, remedy: Remedy) -> str:
    """Return the command of a remedy, as the user types it."""
    return installation.command(
        remedy.command, evidence.run_dir.run_id, remedy.change, *remedy.flags
    )
