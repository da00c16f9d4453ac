"""Closes an attempt: reads the facts, decides what follows, records the decision."""

import errno
import time
from collections.abc import Sequence
from dataclasses import replace

from .. import hooks, shared_files
from ..console import BestEffort, print_line
from ..node.torchrun import stop_signal
from ..records.ended import FINAL, Evidence
from ..rundir import RunDir
from ..runs import fact_reader, interpret, run_lock
from ..runs.interpret import AttemptFacts
from . import collect_evidence, record_writer, srun_step
from .decision import (
    COMPLETED,
    Action,
    Cause,
    Decision,
    after_quick_crash,
    budget_of,
    budget_used,
    decide,
    decide_lost,
    format_decision,
    is_automatic_start,
    with_unsaved,
)
from .end_messages import error_lines, report_quarantine, report_short_lead
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
        if not shared_files.is_dir(run_dir.path):
            gone = "the run directory is gone"
            raise FileNotFoundError(errno.ENOENT, gone, str(run_dir.path)) from None
        raise
    facts = fact_reader.read(run_dir, attempt)
    evidence = collect_evidence.of_ended(run_dir, facts, me, tuple(stops), srun_exit)
    decision = decide(evidence, budget_used(facts.attempts, time.time()), budget_of(facts.spec))
    if facts.plan is not None and interpret.first_event(facts, "first_step") is None:
        ran_s = time.time() - facts.plan.start
        decision = after_quick_crash(decision, evidence, facts.last, ran_s)
    decision = hooks.decide(facts, evidence, decision)
    decision = _with_stop(facts, evidence, decision)
    if decision is COMPLETED and interpret.is_by_exit_code(facts):
        decision = replace(COMPLETED, reason="every rank exited with code 0")
    with BestEffort("attempt")():
        run_dir.attempt(attempt).rendezvous_key.unlink(missing_ok=True)
        report_quarantine(run_dir, facts)
        for line in error_lines(run_dir, facts, evidence):
            print_line(line)
    # slurmctld may not have answered for minutes, and the job may run again elsewhere.
    run_lock.check_owned(run_dir, me, attempt)
    # Else Slurm itself ends the steps; in the job's next start they have the same names.
    is_over = evidence.is_requeued or evidence.outcome == "completed"
    if evidence.job_state == "RUNNING" and not is_over:
        srun_step.end_leftover(me.job_id, interpret.nodes_without_end(facts))
    facts = record_writer.record(run_dir, facts, evidence, decision)
    record_writer.note(run_dir, attempt, "close", decision=decision.action)
    if evidence.outcome == "stopped" and not me.is_local:  # else there is no limit, or no stop
        report_short_lead(facts)
    # Without Slurm the command that runs the attempts prints the hint, as its last line.
    line = format_for_log(decision, run_dir, facts.last)
    print_line(f"attempt {attempt}: {format_decision(decision) if me.is_local else line}")
    if decision.action in FINAL:
        facts = end_run(run_dir, facts, me, decision)
    return decision, facts


def _with_stop(facts: AttemptFacts, evidence: Evidence, decision: Decision) -> Decision:
    """Return the decision with what a stop lacked that saved nothing of the steps."""
    if evidence.outcome is not None or interpret.is_without_step(facts):
        return decision
    if stop_signal(facts.spec.launch) is None or not facts.of_nodes.known_agents:
        return decision  # it saves nothing at a stop, or had not begun
    return with_unsaved(decision, evidence, bool(interpret.nodes_without_end(facts)))


def close_lost(
    run_dir: RunDir, facts: AttemptFacts, me: run_lock.Owner, predecessor: str | None
) -> AttemptFacts:
    """Record the newest attempt if its batch script was killed; returns the facts with its record.

    `predecessor`: the id of the job whose successor this job is.
    """
    last_job_id = None if facts.plan is None else facts.plan.job_id
    is_others = predecessor is not None and last_job_id not in (None, me.job_id, predecessor)
    if is_others or not interpret.is_unrecorded(facts):
        return facts
    is_automatic = is_automatic_start(me.job_id, last_job_id, predecessor)
    evidence = interpret.lost_evidence(facts)
    if is_automatic and not me.is_local:  # has a node failed, and the batch script with it?
        evidence = collect_evidence.of_lost(run_dir, facts, me, evidence)
    budgets = budget_used(facts.attempts, time.time()), budget_of(facts.spec)
    decision = decide_lost(evidence, *budgets, is_automatic)
    decision = hooks.decide(facts, evidence, decision)
    decision = _with_stop(facts, evidence, decision)
    # Nothing else in job.log shows how that attempt ended.
    print_line(f"attempt {facts.attempt}: {format_decision(decision)}")
    facts = record_writer.record(run_dir, facts, evidence, decision)
    if decision.action in FINAL:
        facts = record_writer.write_result(run_dir, facts, decision)
        hooks.end(run_dir, facts, me)
    return facts


def end_between_attempts(run_dir: RunDir, action: Action, cause: Cause, reason: str) -> None:
    """End a run between two attempts: the last one is not continued, whatever ended it.

    A run whose training is complete stays complete. `cause`: where no attempt was closed yet.
    """
    facts = fact_reader.read_newest(run_dir)
    if not record_completion(run_dir, facts):
        record_writer.end_run(run_dir, facts, action, cause, reason)


def record_completion(run_dir: RunDir, facts: AttemptFacts) -> bool:
    """Return whether a run is complete; record it where its batch script was killed before that.

    facts: of the newest attempt.
    """
    if not interpret.is_training_complete(facts):
        return False
    if interpret.is_unrecorded(facts):
        facts = record_writer.record(run_dir, facts, interpret.lost_evidence(facts), COMPLETED)
    record_writer.write_result(run_dir, facts, COMPLETED)
    return True
