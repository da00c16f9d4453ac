"""The command why: what a run waits for, or what ended it, and what to do."""

from __future__ import annotations

import argparse
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ...attempt import record_writer
from ...attempt.decision import History, decide
from ...attempt.ending import ending_of
from ...attempt.reasons import BY_STATE, remedy_of, with_reason
from ...base import answer, files, installation, log_text
from ...base.console import display_path, quantity
from ...base.errors import UserError
from ...base.log_text import first_line, last_lines
from ...commands import arguments
from ...commands.local_lines import format_progress
from ...contract.kinds import KINDS, Kind
from ...contract.records.ended import ENDS, Action, AttemptRecord, Cause
from ...runs import fact_reader, lookup, scratch_purge, state
from ...runs.evidence import rank_evidence
from ...runs.facts import AttemptFacts
from ...runs.state import RunPhase, RunState
from ...slurm import job_list, job_state
from ...slurm.job import Job
from . import pending, words

MAKE = ("", "RUN FLAGS")
ONLY_PRINTS = True
# An error of the batch script or of `attempt.open` in job.log, not of a rank or of srun.
_OWN_ERROR = re.compile(r"^(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d )?error: (.+)")
LAUNCH_FAILURE = "JobLaunchFailure"  # Slurm's reason
_STARTS_AGAIN = (Action.REQUEUE, Action.WAIT)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_run(parser)


def command(args: argparse.Namespace) -> int:
    """Run why; returns the exit code. Raises: UserError for a run that cannot be read."""
    run_dir = lookup.find(args.run)
    run = state.read(run_dir)
    if run.files.problem is not None:
        raise UserError(run.files.problem)
    found = answer_of(run)
    if not answer.give(**run_dir.names(), **asdict(found)):
        lines = [f"{run_dir.path.parent.name} {run_dir.run_id}: {found.cause}: {found.text}"]
        if found.place is not None:
            lines.append(f"  at: {display_path(Path(found.place))}")
        if found.log is not None:
            lines.append(f"  log: {display_path(Path(found.log))}")
        lines += [f"    {line}" for line in found.last_lines]
        if found.cause not in (Kind.COMPLETED, Kind.RUNNING):
            lines += [f"  what to do: {found.advice}", f"  command: {found.next}"]
        print("\n".join(lines))
    return 0


@dataclass(frozen=True)
class Answer:
    """Why a run is in its state, and what a person does about it.

    next: the command to type. place: FILE:LINE of the user's code that failed. log: the one that
    shows more; last_lines: its end.
    """

    cause: Kind
    text: str
    advice: str
    next: str
    place: str | None = None
    log: str | None = None
    last_lines: tuple[str, ...] = ()


def answer_of(run: RunState) -> Answer:
    """Return why a run is in its state. Raises: RecordError, OSError."""
    facts = fact_reader.read_newest(run.run_dir)  # after Slurm's answer: the attempt may have ended
    # The job or process that still runs records the attempt itself.
    is_lost = facts.is_unrecorded and run.is_ended
    last = _lost_record(run, facts) if is_lost else facts.last
    if run.phase is RunPhase.COMPLETED:
        return _of_completed(run, facts)
    if not run.is_ended and run.phase is not RunPhase.UNKNOWN and not run.is_ending:
        return _of_living(run, facts)
    files = run.files
    has_end = files.has_final_result or files.mark is not None or files.is_end_recorded
    if run.phase is RunPhase.UNKNOWN and (life := run.life) is not None and not has_end:
        advice = "ask again on a host where Slurm answers" if life.is_silent else life.hint
        command = installation.command("why", run.run_dir.run_id)
        return Answer(Kind.UNKNOWN, life.why, advice, command)
    if files.mark is not None:  # a job that starts then is refused: that is no cause of its own
        mark = files.mark.strip()
        return _of_kind(run, Kind.CANCELLED, f"the command cancel ended the run ({mark})")
    # A result that is older than the job says nothing of the job.
    is_cancelled = files.has_final_result and run.result and run.result.status == "cancelled"
    if not is_cancelled and (refusal := _refusal(run, facts)) is not None:
        text = f"job {run.job_id} ended before it began an attempt: {refusal}"
        return _of_kind(run, Kind.REFUSED, text)
    try:
        scratch_purge.check(run.run_dir)
    except UserError as error:  # only the user can bring the file back
        return _of_kind(run, Kind.FILES_MISSING, first_line(str(error)))
    is_unlaunched = run.job is not None and run.job.reason == LAUNCH_FAILURE
    asks = (
        last is None or is_unlaunched or last.cause is Cause.LOST or last.decision in _STARTS_AGAIN
    )
    state = None
    if asks and run.job_id is not None:  # the accounting remembers an ended job longer
        state = job_list.end_state(run.job_id) if run.job is None else run.job.state
    if is_cancelled or state == "CANCELLED":
        return _of_kind(run, Kind.CANCELLED, "the job was cancelled by scancel")
    if last is not None and not is_unlaunched:
        return _of_record(run, last, BY_STATE.get(state or ""))
    return _of_never_started(run, state)


def _lost_record(run: RunState, facts: AttemptFacts) -> AttemptRecord:
    """Return the record that the next start of the run would write about its newest attempt."""
    seen = rank_evidence(facts)
    ending = ending_of(facts, seen, now=0.0, is_automatic=False)
    record = record_writer.record_of(facts, ending, decide(ending, History()), 0.0)
    return with_reason(run.run_dir, facts, ending, record)


def _of_kind(run: RunState, kind: Kind, text: str) -> Answer:
    row = KINDS[kind]
    command = installation.command(row.command, run.run_dir.run_id, row.change, *row.flags)
    return Answer(kind, text, row.advice, command)


def _of_completed(run: RunState, facts: AttemptFacts) -> Answer:
    kind, what = Kind.COMPLETED, "nothing is wrong,"
    if facts.last is not None and facts.last.why.kind is Kind.SEPARATE_TRAININGS:
        kind, what = facts.last.why.kind, f"{facts.last.reason};"
    step = None if run.result is None else run.result.global_step
    at = "" if step is None else f" at step {step}"
    attempts = quantity(len(facts.attempts), "attempt")
    return _of_kind(run, kind, f"{what} the run is complete{at} after {attempts}")


def _of_living(run: RunState, facts: AttemptFacts) -> Answer:
    """Return the answer of a run whose job waits or runs, or that runs on this machine."""
    text = words.state(run, 0.0)
    named = next((each for each in run.files.jobs if each.job_id == run.job_id), None)
    # All that Slurm shows of the job; the state was read with fewer fields, of all runs at once.
    job = (None if named is None else job_list.life_of(named).job) or run.job
    if job is not None and job.state in (*job_state.WAITING, "SUSPENDED"):
        text = f"job {run.job_id} waits ({job.reason}): {pending.explain(job.reason) or text}"
        return _of_kind(run, Kind.PENDING, text)
    if run.files.progress is not None:
        text += f", {format_progress(run.files.progress, None, 0.0)}"
    elif facts.last is not None:
        text += f"; attempt {facts.last.attempt} ended: {words.end_reason(facts.last)}"
    else:
        text += ", no step is reported yet"
    if ends := facts.of_nodes.ends:
        text += f"; {ends}: if it stays silent, the run is held as done but not ended"
    return _of_kind(run, Kind.RUNNING, text)


def _refusal(run: RunState, facts: AttemptFacts) -> str | None:
    """Return why a user's job, queued after the newest attempt, ended before its own attempt."""
    job_id = facts.submission.job_id
    known = (facts.plan and facts.plan.job_id, facts.last and facts.last.job_id)
    # Of the same job, Slurm's further start after a hold is refused as it should be.
    if job_id is None or job_id in known:
        return None
    lines = log_text.read_end(run.run_dir.job_log)
    errors = [found[1] for line in lines if (found := _OWN_ERROR.search(line))]
    return errors[-1] if errors else None


def _of_record(run: RunState, last: AttemptRecord, by_slurm: Kind | None) -> Answer:
    """Return the answer of a run that was held, or whose job ended without a result.

    by_slurm: of Slurm's end state, where the batch script could not record the attempt.
    """
    why = last.why
    if by_slurm and why.kind is Kind.BATCH_SCRIPT_KILLED:
        why = replace(why, kind=by_slurm)
    ended_as = "the run ended"
    if last.decision is Action.HOLD and last.cause is not Cause.LOST:
        ended_as = "the run is held"
    elif last.decision not in ENDS:
        ended_as = f"the run should have continued ({last.decision}), but has no job"
    progress = run.files.progress
    at = "" if progress is None else f" at step {progress.step}"
    advice, command = remedy_of(why, run.run_dir.run_id)
    return Answer(
        *(why.kind, f"{ended_as}{at}: {last.reason}", advice, command, why.place, why.log),
        last_lines=() if why.log is None else tuple(last_lines(Path(why.log))),
    )


def _of_never_started(run: RunState, state: str | None) -> Answer:
    if state is None:
        gone = "" if run.job_id is None else f", and Slurm does not know job {run.job_id} any more"
        return _of_kind(run, Kind.NEVER_STARTED, f"no attempt was begun{gone}")
    job = run.job or Job(state)
    ended_as = state if job.reason == "None" else f"{state} ({job.reason})"
    attempt = "an attempt" if run.files.last is None else "its next attempt"
    text = f"Slurm ended job {run.job_id} as {ended_as}, before it began {attempt}"
    has_log = files.exists(log := run.run_dir.job_log)
    if job.reason != LAUNCH_FAILURE and (has_log or state != "FAILED"):
        answer = _of_kind(run, BY_STATE.get(state, Kind.UNKNOWN), text)
        lines = tuple(last_lines(log))
        return replace(answer, log=str(log), last_lines=lines) if has_log else answer
    # Slurm opens job.log first, in the run directory. It does not keep what failed.
    text += f": perhaps {job.nodes or 'its node'} cannot open {run.run_dir.path}"
    advice = "submit with a runs_root that every host has"
    return replace(_of_kind(run, Kind.REFUSED, text), advice=advice)
