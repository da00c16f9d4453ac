"""What the attempts of a run left behind: records, budgets used, result.

All of it lies in the run directory; `jobs.attempt.run_lock` says who may write there.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from jobs import records
from jobs.attempt.decision import (
    CRASHES,
    Budget,
    Decision,
    History,
    after_loss,
    is_restart,
)
from jobs.attempt.facts import of_ranks, read_exit
from jobs.attempt.run_lock import Owner
from jobs.attempt.srun_step import silent
from jobs.console import BestEffort
from jobs.records import (
    Action,
    AttemptPlan,
    AttemptRecord,
    Cause,
    Event,
    Evidence,
    RequeueAnswer,
    Result,
)
from jobs.rundir import RunDir, Timeline
from jobs.runs import checkpoints, lookup
from jobs.slurm.client import Requeued
from jobs.spec import Spec

ENDS = (Action.HOLD, Action.CANCEL)  # only somebody's resume goes on after these


def newest_attempt(run_dir: RunDir) -> int:
    """The number of the newest attempt that was opened; 0 before the first.

    Its plan or its record may be lost to a scratch purge, and its agents' records tell, too.
    """
    files = (run_dir.path.glob(f"attempt-*/{name}.json") for name in ("plan", "agent-*"))
    opened = [int(path.parent.name.partition("-")[2]) for path in chain.from_iterable(files)]
    recorded = [record.attempt for record in records.read_attempts(run_dir)]
    return max([*opened, *recorded], default=0)


def last_record(run_dir: RunDir) -> AttemptRecord | None:
    """The record of the newest attempt that was closed; None before the first."""
    attempts = records.read_attempts(run_dir)
    return attempts[-1] if attempts else None


def steps_of(run_dir: RunDir, attempt: int) -> tuple[int | None, int | None]:
    """The first and the last optimizer step that an attempt did; None where it did none."""
    loaded = _first_event(run_dir, attempt, "loaded")
    last = records.read_progress_step(run_dir.progress)
    if loaded is None or loaded.step is None or last is None or last <= loaded.step:
        return None, None
    return loaded.step + 1, last


def record(run_dir: RunDir, attempt: int, seen: Evidence, decision: Decision) -> None:
    """Append the one record of an attempt to attempts.jsonl."""
    plan = records.read(AttemptPlan, run_dir.attempt(attempt).plan)
    first_step, last_step = steps_of(run_dir, attempt)
    stop_s, start_s = times_of(run_dir, attempt, bool(seen.signals))
    entry = AttemptRecord(
        attempt=attempt,
        job_id=None if plan is None else plan.job_id,
        nodes=None if plan is None else plan.nodes,
        start=None if plan is None else plan.start,
        stop=round(time.time(), 3),
        cause=decision.cause,
        first_step=first_step,
        last_step=last_step,
        stop_s=stop_s,
        start_s=start_s,
        checkpoint=checkpoints.newest(run_dir),
        quarantined=tuple(checkpoints.newly_quarantined(run_dir, attempt)),
        decision=decision.action,
        reason=decision.reason,
        evidence=seen,
    )
    records.append(run_dir.attempts, entry)


def times_of(run_dir: RunDir, attempt: int, is_warned: bool) -> tuple[float | None, float | None]:
    """How long an attempt took to stop and to start, in s; None where it did not.

    The stop: from the first warning to now; the start: from the opening to the first step.
    `is_warned`: signals that only follow from a failure are no warning.
    """
    plan = records.read(AttemptPlan, run_dir.attempt(attempt).plan)
    agents = records.read_agents(run_dir, attempt)
    warned = min((each.t for agent in agents for each in agent.signals), default=None)
    begun = _first_event(run_dir, attempt, "first_step")
    stop_s = None if warned is None or not is_warned else round(time.time() - warned, 3)
    start_s = None if begun is None or plan is None else round(begun.t - plan.start, 3)
    return stop_s, start_s


def _first_event(run_dir: RunDir, attempt: int, name: str) -> Event | None:
    """Rank 0's first timeline event of a name in an attempt."""
    events = records.read_events(run_dir.timeline("rank-00000"))
    return next((e for e in events if (e.attempt, e.event) == (attempt, name)), None)


def amend(run_dir: RunDir, decision: Decision, requeued: Requeued | None = None) -> None:
    """Append a record that corrects the newest one: its decision could not be carried out.

    `requeued`: what became of the requeue that the newest record decided on.
    """
    last = last_record(run_dir)
    if last is None:  # lost to a scratch purge
        return
    seen = last.evidence
    if requeued is not None and requeued.job is not None:
        job = requeued.job
        seen = replace(seen, job_state=job.state, job_reason=job.reason)
    corrected = replace(
        last,
        cause=decision.cause,
        decision=decision.action,
        reason=decision.reason,
        evidence=seen,
        requeue=None if requeued is None else requeued.answer,
    )
    records.append(run_dir.attempts, corrected)


def close_lost(run_dir: RunDir, me: Owner) -> None:
    """Record the newest attempt if nobody did: its batch shell was killed.

    Where the same job comes back by itself the budgets count; where somebody submitted another
    one, the run stood still until then, and they begin anew.
    """
    newest = newest_attempt(run_dir)
    attempts = records.read_attempts(run_dir)
    if newest == 0 or newest in {entry.attempt for entry in attempts}:
        return
    plan = records.read(AttemptPlan, run_dir.attempt(newest).plan)
    is_automatic = plan is not None and comes_by_itself(run_dir, me, plan.job_id)
    seen = of_ranks(run_dir, newest, "LOST")
    if plan and is_automatic and not me.is_local:  # has the batch script's node died with it?
        seen = replace(seen, silent_nodes=silent(run_dir, newest, plan.nodes[:1]))
    if seen.outcome == "completed":
        decision = Decision(Action.DONE, Cause.COMPLETED, "all steps are done")
    elif is_automatic:
        decision = after_loss(seen, of(attempts), budget_of(run_dir))
    else:
        decision = Decision(Action.HOLD, Cause.LOST, "nobody was left to say what happened")
    record(run_dir, newest, seen, decision)
    if decision.action is Action.DONE:
        finish_result(run_dir)
    elif decision.action is Action.HOLD:
        unfinished_result(run_dir, decision)


def comes_by_itself(run_dir: RunDir, me: Owner, before: str | None) -> bool:
    """Whether this job takes over from the job `before` without anybody's doing."""
    return before is not None and before in (me.job_id, lookup.predecessor(run_dir))


def refusal(run_dir: RunDir, me: Owner) -> str | None:
    """Why this start of the job must not go on; None if it may.

    A job that was held or cancelled may still be started again: by Slurm, which requeues a job
    whose node is lost whatever the attempt decided, or by a requeue that came too late. Where
    slurmctld did not answer the request to requeue, this start is the requested one.
    """
    last = last_record(run_dir)
    if last is None or last.decision not in ENDS:
        return None
    if last.decision is Action.HOLD and last.requeue is RequeueAnswer.NO_ANSWER:
        return None
    if not comes_by_itself(run_dir, me, last.job_id):
        return None
    return f"{last.decision}: {last.reason}"


def of(attempts: Sequence[AttemptRecord]) -> History:
    """What counts against the budgets. A hold or a cancel starts anew: somebody resumed."""
    crashes = idle = restarts = 0
    may_count_crashes = may_count_idle = True
    for entry in reversed(attempts):
        if entry.decision in ENDS:
            break
        has_progress = entry.evidence.has_progress
        may_count_idle = may_count_idle and not has_progress
        idle += may_count_idle
        crashes += may_count_crashes and entry.cause in CRASHES
        may_count_crashes = may_count_crashes and not has_progress
        restarts += is_restart(entry.decision, entry.cause)
    return History(restarts, crashes, idle)


def budget_of(run_dir: RunDir) -> Budget:
    """How often a run comes back by itself; the defaults where its spec cannot be read any more.

    That stops the run by itself, with a reason of its own (jobs.runs.purge).
    """
    try:
        spec = Spec.read(run_dir.spec)
    except (OSError, ValueError, TypeError, KeyError):
        return Budget()
    return Budget(spec.slurm.max_restarts, spec.launch.max_crashes)


def steps_redone(attempts: Sequence[AttemptRecord]) -> int:
    """Optimizer steps that were done more than once."""
    done = redone = 0
    for entry in attempts:
        if entry.first_step is not None and entry.last_step is not None:
            redone += max(0, done - entry.first_step + 1)
            done = entry.last_step
    return redone


def is_complete(run_dir: RunDir) -> bool:
    """Whether the run has reached its end."""
    result = records.read(Result, run_dir.result)
    return result is not None and result.status == "completed"


def finish_result(run_dir: RunDir) -> None:
    """Complete rank 0's result with what only the attempts know."""
    attempts = records.read_attempts(run_dir)
    result = records.read(Result, run_dir.result) or Result("completed")
    counted = replace(result, attempts=len(attempts), steps_redone=steps_redone(attempts))
    records.write(run_dir.result, counted)


def reached_step(run_dir: RunDir) -> int:
    """The last optimizer step as far as anybody says; 0 before the first."""
    step = records.read_progress_step(run_dir.progress)
    if step is None:  # a user's script writes it to outcome.json only
        step = read_exit(run_dir, newest_attempt(run_dir)).global_step
    return step or 0


def end_between(run_dir: RunDir, action: Action, cause: Cause, reason: str) -> None:
    """End a run between two attempts: the last one goes on no more, whatever ended it.

    `cause`: where no attempt was closed yet.
    """
    last = last_record(run_dir)
    decision = Decision(action, cause if last is None else last.cause, reason)
    if last is not None and last.decision not in ENDS:
        amend(run_dir, decision)
    unfinished_result(run_dir, decision)


def unfinished_result(run_dir: RunDir, decision: Decision) -> None:
    """Write the result of a run that stops here without being complete."""
    attempts = records.read_attempts(run_dir)
    result = Result(
        status="cancelled" if decision.action is Action.CANCEL else "held",
        reason=decision.reason,
        global_step=reached_step(run_dir),
        attempts=len(attempts),
        steps_redone=steps_redone(attempts),
    )
    records.write(run_dir.result, result)


def note(run_dir: RunDir, attempt: int, event: str, **fields: Any) -> None:
    """Put an event into the attempts' timeline; nothing is decided by it, so it may fail."""
    with BestEffort("attempt")():
        Timeline(run_dir, "attempt", attempt).event(event, **fields)
