"""Closes an attempt: gathers what is known, decides what follows, records the decision."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import replace

from jobs import records
from jobs.attempt import history, run_lock, successor
from jobs.attempt.decision import Action, Decision, decide
from jobs.attempt.execute import in_words
from jobs.attempt.facts import gather
from jobs.attempt.report import report_error, report_quarantine
from jobs.console import BestEffort, say
from jobs.rundir import RunDir


def close_attempt(
    run_dir: RunDir,
    me: run_lock.Owner,
    attempt: int,
    stops: Sequence[str] = (),
    srun_exit: int = 0,
) -> Decision:
    """Decide what follows an attempt that has ended, and record it before it is acted on.

    `stops`: signals that the caller has seen; an agent that was just starting dies of its own.
    `srun_exit`: the exit code of the step's srun, where there was one.
    Raises: OwnedError for an attempt that was superseded meanwhile, OSError.
    """
    if not run_dir.spec.is_file():
        raise FileNotFoundError(errno.ENOENT, "the run directory is gone", str(run_dir.path))
    run_lock.check_owned(run_dir, me, attempt)
    evidence = gather(run_dir, me, attempt, srun_exit)
    if not evidence.signals:
        evidence = replace(evidence, signals=tuple(stops))
    budget = history.budget_of(run_dir)
    decision = decide(evidence, history.of(records.read_attempts(run_dir)), budget)
    with BestEffort("attempt")():
        report_quarantine(run_dir, attempt)
        report_error(run_dir, attempt, evidence)
    # Slurm may have been silent for minutes, and the job runs again elsewhere.
    run_lock.check_owned(run_dir, me, attempt)
    history.record(run_dir, attempt, evidence, decision)
    history.note(run_dir, attempt, "close", decision=decision.action)
    say(f"attempt {attempt}: {in_words(decision, run_dir)}")
    if decision.action is Action.DONE:
        history.finish_result(run_dir)
    elif decision.action in (Action.HOLD, Action.CANCEL):
        history.unfinished_result(run_dir, decision)
    if decision.action in (Action.DONE, Action.HOLD, Action.CANCEL):
        successor.cancel(run_dir, me.job_id)
        run_lock.release(run_dir, me)
    return decision
