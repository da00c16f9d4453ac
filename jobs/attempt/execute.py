"""Carries a decision out, as far as Slurm is concerned; nothing is decided here."""

from __future__ import annotations

import random
import shlex
import time
from collections.abc import Sequence
from dataclasses import replace

from jobs.attempt import exclude_nodes, history, run_lock, successor
from jobs.attempt.decision import Action, Cause, Decision, format_decision
from jobs.attempt.interpret import AttemptFacts
from jobs.console import say
from jobs.records import AttemptRecord, RequeueAnswer
from jobs.rundir import RunDir
from jobs.slurm import client

EXIT_RETRY = 75  # the batch script starts another srun step. Source: sysexits.h, EX_TEMPFAIL
MAX_DELAY_S = 60
# A partition's jobs are preempted together: not all of them ask slurmctld in the same second.
SPREAD_S = 1.0


def act(decision: Decision, run_dir: RunDir, found: AttemptFacts, me: run_lock.Owner) -> int:
    """Carry a recorded decision out; returns the batch script's exit code.

    A run that is not complete never ends with 0: Slurm would book it as COMPLETED.
    """
    if decision.action is Action.DONE:
        return 0
    if decision.action is Action.RETRY:
        time.sleep(retry_delay_s(found.attempts))
        return EXIT_RETRY
    if decision.action is Action.REQUEUE:
        requeue(decision, run_dir, found, me)
    if decision.action is Action.SUCCESSOR:
        if after := successor.confirm(run_dir, found, me.job_id):
            hand_over(run_dir, found, me, after)
        else:
            reason = f"{decision.reason}; NOT requeued: this job cannot be, and no other one waits"
            end(replace(decision, action=Action.HOLD, reason=reason), run_dir, found, me)
    return 1


def hand_over(run_dir: RunDir, found: AttemptFacts, me: run_lock.Owner, successor_id: str) -> None:
    """Leave the run to the job that waits for the end of this one."""
    run_lock.release(run_dir, me)
    exclude_nodes.update_successor(run_dir, found, successor_id)


def in_words(decision: Decision, run_dir: RunDir, is_user_error: bool = False) -> str:
    """A decision for the job's log, with what to do after a hold."""
    line = format_decision(decision)
    if decision.action is Action.HOLD:
        line += f"\n  hint: {hold_hint(decision, run_dir, is_user_error)}"
    return line


def hold_hint(decision: Decision, run_dir: RunDir, is_user_error: bool) -> str:
    """What the user does after a hold. A resume runs the frozen code, with its errors, again.

    `is_user_error`: a resume of the same spec would only repeat the error.
    """
    resume = f"make resume RUN={shlex.quote(run_dir.run_id)}"
    if is_user_error:
        return f'fix the error, then submit again; for a wrong key of the spec: {resume} SET="..."'
    if decision.cause is Cause.CRASH:
        return (
            f"{resume} continues from what was saved; if the code is wrong, fix it and submit again"
        )
    return f"{resume} continues from what was saved, with the code as it was submitted"


def retry_delay_s(attempts: Sequence[AttemptRecord]) -> float:
    """How long to wait before another attempt: 2, 8, 32 s ... after crashes without progress."""
    crashes = history.of(attempts).crashes_without_progress
    return float(min(2 * 4 ** max(0, crashes - 1), MAX_DELAY_S))


def requeue(decision: Decision, run_dir: RunDir, found: AttemptFacts, me: run_lock.Owner) -> None:
    """Have Slurm start the job again; where it does not, correct record and result."""
    time.sleep(random.uniform(0, SPREAD_S))
    requeued = client.requeue(me.job_id)
    job = requeued.job
    if requeued.answer is RequeueAnswer.ACCEPTED:
        if job is not None:
            exclude_nodes.update_exclude_list(run_dir, found, me.job_id, job.excluded)
        return
    is_cancelled = job is not None and client.is_cancelled(job.state, job.reason)
    # Where preemption cancels, Slurm may have done it; then the job after this one will know.
    cancels_preempted = found.site is None or found.site.cancels_preempted is not False
    reason = f"{decision.reason}; NOT requeued: {requeued.problem}"
    if job is not None and is_cancelled and not (job.is_preempted and cancels_preempted):
        # It came between the decision and the requeue, which then did nothing.
        instead = Decision(Action.CANCEL, Cause.CANCELLED, "the job was cancelled")
        end(instead, run_dir, found, me, requeued)
    elif run_lock.is_owned_by_start(run_dir, me) and (
        after := successor.confirm(run_dir, found, me.job_id)
    ):
        instead = replace(decision, action=Action.SUCCESSOR, reason=reason)
        say(in_words(instead, run_dir))
        found = history.amend(run_dir, found, instead, requeued)
        hand_over(run_dir, found, me, after)
    else:
        end(replace(decision, action=Action.HOLD, reason=reason), run_dir, found, me, requeued)


def end(
    decision: Decision,
    run_dir: RunDir,
    found: AttemptFacts,
    me: run_lock.Owner,
    requeued: client.Requeued | None = None,
) -> None:
    """End the run by another decision than the recorded one, and correct record and result."""
    # Slurm may have started the job elsewhere without an answer to this process.
    if not run_lock.is_owned_by_start(run_dir, me):
        say(f"{run_dir.path}: another start owns the run, nothing recorded")
        return
    say(in_words(decision, run_dir))
    found = history.amend(run_dir, found, decision, requeued)
    history.write_result(run_dir, found, decision)
    successor.cancel(run_dir, found, me.job_id)
    run_lock.release(run_dir, me)
