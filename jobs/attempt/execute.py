"""Executes a decision: requeues the job, or leaves the run to its successor."""

import random
import time
from collections.abc import Sequence
from dataclasses import replace

from .. import hooks
from ..base.console import print_line
from ..contract.kinds import Kind
from ..contract.records.ended import AttemptRecord
from ..contract.records.queued import RequeueAnswer
from ..contract.rundir import RunDir
from ..runs import run_lock
from ..runs.facts import AttemptFacts
from ..slurm import cluster, job_state
from ..slurm.job import Job, RequeueResult, forbid_requeue, request_requeue, set_excluded, show_job
from . import record_writer
from .decision import Action, Decision, Ending, after_cancel, format_decision, history_of
from .reasons import hold_hint

OTHER_CODES = range(3, 64)  # without the shell's own, 2, and those of sysexits.h
EXIT_RETRY = 75  # the next attempt begins in this process. Source: sysexits.h, EX_TEMPFAIL
MAX_DELAY_S = 60
# A partition's jobs are preempted together: not all of them ask slurmctld in the same second.
SPREAD_S = 1.0


def execute(decision: Decision, run_dir: RunDir, facts: AttemptFacts, me: run_lock.Owner) -> int:
    """Execute a recorded decision; returns the batch script's exit code.

    It is 0 for a complete run only: Slurm books a job that ends with 0 as COMPLETED.
    """
    if decision.action is Action.DONE:
        return 0
    if decision.action is Action.RETRY:
        return EXIT_RETRY
    if decision.action is Action.REQUEUE:
        is_over = requeue_or_leave(decision, run_dir, facts, me)
    elif decision.action is Action.SUCCESSOR:
        is_over = leave_to_successor(decision, run_dir, facts, me)
    else:
        is_over = decision.action is not Action.WAIT
    return end_for_good(me.job_id) if is_over and not me.is_local else 1


def end_for_good(job_id: str) -> int:
    """Let Slurm not start a job again whose run has ended; returns the exit code of its end.

    It is 1, or another one where the site requeues or holds jobs because of that code: before
    23.11 Slurm does so although Requeue=0.
    """
    forbid_requeue(job_id)
    listed = cluster.requeued_codes()
    return next((code for code in (1, *OTHER_CODES) if code not in listed), 1)


def leave_to_successor(
    decision: Decision,
    run_dir: RunDir,
    facts: AttemptFacts,
    me: run_lock.Owner,
    requeued: RequeueResult | None = None,
) -> bool:
    """Leave the run to the job's successor, or hold it; returns whether this job is over.

    It may not be: another start owns the run, or Slurm has accepted a requeue without an answer.
    """
    after, refusal = None, ""
    if run_lock.is_owned_by_start(run_dir, me):
        after, refusal = hooks.successor(run_dir, facts, me, is_over=True)
    if after is None:
        problem = "Slurm cannot start this job again, and it has no successor"
        if requeued is not None:
            problem = requeued.problem + (", and no successor" if refusal else "")
        problem += f": {refusal}" if refusal else ""
        hold = not_requeued(decision, problem)
        is_ended = end_instead(hold, run_dir, facts, me, requeued)
        return is_ended and (requeued is None or requeued.answer is not RequeueAnswer.NO_ANSWER)
    if requeued is not None:
        instead = replace(not_requeued(decision, requeued.problem), action=Action.SUCCESSOR)
        print_line(format_for_log(instead, run_dir, facts.last))
        facts = record_writer.amend(run_dir, facts, instead, requeued)
    run_lock.release(run_dir, me)
    exclude_nodes(run_dir, facts, after, show_job(after))
    return True


def not_requeued(decision: Decision, problem: str) -> Decision:
    """Return the hold where the job was not requeued because of a problem."""
    reason = f"{decision.reason}; NOT requeued: {problem}"
    return replace(decision, action=Action.HOLD, reason=reason, budget=Kind.NOT_REQUEUED)


def exclude_nodes(run_dir: RunDir, facts: AttemptFacts, job_id: str, job: Job | None) -> None:
    """Let a plugin replace the ExcNodeList of a job of the run; Slurm takes it of a pending job."""
    if job is None:
        return
    listed = cluster.expand_hostlist(job.excluded)
    nodes = hooks.exclude(run_dir, facts.spec, facts.submission, facts.attempts, listed)
    problem = set_excluded(job_id, nodes) if {*nodes} != {*listed} else ""
    if problem:
        print_line(f"Slurm does not set ExcNodeList={','.join(nodes)} of job {job_id}: {problem}")


def format_for_log(decision: Decision, run_dir: RunDir, record: AttemptRecord | None) -> str:
    """Return a decision as job.log shows it, with a hint after a hold. record: of the attempt."""
    line = format_decision(decision)
    if decision.action is Action.HOLD and record is not None:
        line += f"\n  hint: {hold_hint(record.why, run_dir.run_id)}"
    return line


def retry_delay_s(attempts: Sequence[AttemptRecord]) -> float:
    """Return the wait before another attempt: 2, 8, 32 s ... from the second crash in a row on.

    Only crashes without progress count, and of the last day, as for the budget.
    """
    crashes = history_of(attempts, time.time()).crashes
    return 0.0 if crashes < 2 else float(min(2 * 4 ** (crashes - 2), MAX_DELAY_S))


def requeue_or_leave(
    decision: Decision, run_dir: RunDir, facts: AttemptFacts, me: run_lock.Owner
) -> bool:
    """Ask Slurm to start the job again; if it does not, correct the record and write the result.

    Returns whether this job is over, as `leave_to_successor`.
    """
    time.sleep(random.uniform(0, SPREAD_S))
    requeued = request_requeue(me.job_id)
    job = requeued.job
    if requeued.answer is RequeueAnswer.ACCEPTED:
        exclude_nodes(run_dir, facts, me.job_id, job)
        return False
    if job is not None and job_state.is_cancelled(job.state, job.reason):
        # The cancel came between the decision and the requeue, which then had no effect.
        *earlier, last = facts.attempts
        found = replace(
            last.evidence, job_state=job.state, job_reason=job.reason, is_preempted=job.is_preempted
        )
        before = replace(facts, attempts=tuple(earlier))
        instead = hooks.decide(before, Ending(found), after_cancel(found))
        if instead.action is not Action.SUCCESSOR:
            return end_instead(instead, run_dir, facts, me, requeued)
    return leave_to_successor(decision, run_dir, facts, me, requeued)


def end_instead(
    decision: Decision,
    run_dir: RunDir,
    facts: AttemptFacts,
    me: run_lock.Owner,
    requeued: RequeueResult | None,
) -> bool:
    """End the run by another decision than the recorded one; corrects record and result.

    False, and nothing is recorded, if another start of the job owns the run.
    """
    # Slurm may have started the job again without an answer to this process.
    if not run_lock.is_owned_by_start(run_dir, me):
        print_line(f"{run_dir.path}: another start owns the run, nothing recorded")
        return False
    facts = record_writer.amend(run_dir, facts, decision, requeued)
    print_line(format_for_log(decision, run_dir, facts.last))
    end_run(run_dir, facts, me, decision)
    return True


def end_run(
    run_dir: RunDir, facts: AttemptFacts, me: run_lock.Owner, decision: Decision
) -> AttemptFacts:
    """Write the result of a run and release it; returns the facts with the result."""
    had_result = facts.result is not None
    facts = record_writer.write_result(run_dir, facts, decision)
    run_lock.release(run_dir, me)
    if not had_result:
        hooks.end(run_dir, facts, me)
    return facts
