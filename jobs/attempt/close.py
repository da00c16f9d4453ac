"""Closes an attempt: reads the facts, decides what follows, records the decision."""

import errno
import time
from collections.abc import Sequence

from .. import hooks
from ..base import files
from ..base.console import BestEffort, print_line
from ..contract.records.ended import FINAL
from ..contract.rundir import RunDir
from ..runs import fact_reader, lookup, run_lock
from ..runs.evidence import is_training_complete, rank_evidence
from ..runs.facts import AttemptFacts
from . import collect_evidence, record_writer, srun_step
from .decision import (
    COMPLETED,
    Action,
    Cause,
    Decision,
    Ending,
    budget_of,
    decide,
    format_decision,
    history_of,
    is_automatic_start,
)
from .end_messages import error_lines, report_quarantine, report_short_lead
from .ending import ending_of
from .execute import end_run, format_for_log


def close(
    run_dir: RunDir, me: run_lock.Owner, attempt: int, stops: Sequence[str] = (), srun_exit: int = 0
) -> tuple[Decision, AttemptFacts]:
    """Decide what follows an attempt that has ended, and record it before it is carried out.

    `stops`: stop signals that the caller got; an agent that was just starting recorded none.
    `srun_exit`: the exit code of the step's srun, where there was one.
    Returns: the decision, and the facts with its record.
    Raises: OwnedError for an attempt that was superseded meanwhile, RecordError, OSError.
    """
    try:
        run_lock.check_owned(run_dir, me, attempt)
    except run_lock.OwnedError:
        if not files.is_dir(run_dir.path):
            gone = "the run directory is gone"
            raise FileNotFoundError(errno.ENOENT, gone, str(run_dir.path)) from None
        raise
    facts = fact_reader.read(run_dir, attempt)
    ending = collect_evidence.of_ended(run_dir, facts, me, tuple(stops), srun_exit)
    evidence, decision = ending.evidence, _decide(facts, ending)
    with BestEffort("attempt")():
        run_dir.attempt(attempt).rendezvous_key.unlink(missing_ok=True)
        report_quarantine(run_dir, attempt, ending)
        for line in error_lines(run_dir, attempt, ending):
            print_line(line)
    # slurmctld may not have answered for minutes, and the job may run again elsewhere.
    run_lock.check_owned(run_dir, me, attempt)
    # Else Slurm itself ends the steps; in the job's next start they have the same names.
    is_over = evidence.is_requeued or evidence.outcome == "completed"
    if evidence.job_state == "RUNNING" and not is_over:
        srun_step.end_leftover(me.job_id, ending.silent)
    facts = record_writer.record(run_dir, facts, ending, decision)
    record_writer.note(run_dir, attempt, "close", decision=decision.action)
    if evidence.outcome == "stopped" and not me.is_local:  # else there is no limit, or no stop
        report_short_lead(facts)
    # Without Slurm the command that runs the attempts prints the end of the run.
    if not me.is_local:
        print_line(f"attempt {attempt}: {format_for_log(decision, run_dir, facts.last)}")
    elif decision.cause not in (Cause.COMPLETED, Cause.INTERRUPTED):
        print_line(f"attempt {attempt}: {format_decision(decision)}")
    if decision.action in FINAL:
        facts = end_run(run_dir, facts, me, decision)
    return decision, facts


def _decide(facts: AttemptFacts, ending: Ending) -> Decision:
    history = history_of(facts.attempts, time.time())
    return hooks.decide(facts, ending, decide(ending, history, budget_of(facts.spec)))


def close_lost(run_dir: RunDir, facts: AttemptFacts, me: run_lock.Owner) -> AttemptFacts:
    """Record the newest attempt if its batch script was killed; returns the facts with its record.

    This job or process has claimed the next attempt. After a user's start, a hold ends no run.
    """
    predecessor = lookup.predecessor(run_dir)
    last_job_id = None if facts.plan is None else facts.plan.job_id
    is_others = predecessor is not None and last_job_id not in (None, me.job_id, predecessor)
    if is_others or not facts.is_unrecorded:
        return facts
    is_automatic = is_automatic_start(me.job_id, last_job_id, predecessor)
    ending = collect_evidence.of_lost(run_dir, facts, me, is_automatic)
    decision = _decide(facts, ending)
    # Nothing else in job.log shows how that attempt ended.
    print_line(f"attempt {facts.attempt}: {format_decision(decision)}")
    facts = record_writer.record(run_dir, facts, ending, decision)
    if decision.action in FINAL and (is_automatic or decision.action is Action.DONE):
        facts = record_writer.write_result(run_dir, facts, decision)
        hooks.end(run_dir, facts, me)
    return facts


def end_cancelled(run_dir: RunDir) -> None:
    """End a run between two attempts: the last one is not continued, whatever ended it.

    A run whose training is complete stays complete.
    """
    facts, reason = fact_reader.read_newest(run_dir), "the job was cancelled"
    if not record_completion(run_dir, facts):
        facts = record_writer.record_end(run_dir, facts, Action.CANCEL, Cause.CANCELLED, reason)
        hooks.end(run_dir, facts, None)


def record_completion(run_dir: RunDir, facts: AttemptFacts) -> bool:
    """Return whether a run is complete; record it where its batch script was killed before that.

    facts: of the newest attempt.
    """
    if not is_training_complete(facts):
        return False
    if facts.is_unrecorded:
        ending = ending_of(facts, rank_evidence(facts), time.time())
        facts = record_writer.record(run_dir, facts, ending, COMPLETED)
    was_known = facts.result is not None
    facts = record_writer.write_result(run_dir, facts, COMPLETED)
    if not was_known:
        hooks.end(run_dir, facts, None)
    return True
