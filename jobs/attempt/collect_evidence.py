"""The evidence about an attempt that ended: its files, and what Slurm and its nodes answer now."""

from __future__ import annotations

import time
from dataclasses import replace

from slurm_job_kit.jobs.attempt import requeue_policy, srun_step
from slurm_job_kit.jobs.console import say
from slurm_job_kit.jobs.records.ended import Evidence
from slurm_job_kit.jobs.runs import interpret, run_lock
from slurm_job_kit.jobs.runs.interpret import AttemptFacts
from slurm_job_kit.jobs.slurm import client

# A slurmctld that is only busy answers in less time.
SLOW_ANSWER_S = 5.0


def of_ended(
    found: AttemptFacts, me: run_lock.Owner, stops: tuple[str, ...], srun_exit: int
) -> Evidence:
    """What ended the attempt; Slurm is not asked where the run is certainly complete."""
    seen = interpret.rank_evidence(found, "LOCAL" if me.is_local else "UNKNOWN", srun_exit)
    if not seen.signals:
        signals = stops or interpret.stop_signals_at_start(found, srun_exit)
        seen = interpret.unless_contradicted(found, replace(seen, signals=signals))
    if not me.is_local and (seen.outcome != "completed" or interpret.is_by_exit_code(found)):
        seen = ask_slurm(found, seen, me.job_id)
    return seen


def ask_slurm(found: AttemptFacts, seen: Evidence, job_id: str) -> Evidence:
    """`evidence` with what Slurm shows of the job now; unchanged where it does not answer."""
    asked = time.monotonic()
    job = client.show_job_patiently(job_id)
    waited_s = time.monotonic() - asked
    if waited_s > SLOW_ANSWER_S:
        seen = replace(seen, slurmctld_away_s=round(waited_s, 1))
    if job is None:
        say(f"attempt {found.attempt}: slurmctld does not show job {job_id}")
        return seen
    seen = replace(
        seen,
        job_state=job.state,
        job_reason=job.reason,
        is_preempted=job.is_preempted,
        is_requeued=job.restarts > client.restart_count(),
        can_requeue=job.can_requeue,
        has_successor=interpret.successor_of(found, job_id) is not None,
        is_near_limit=interpret.is_near_limit(found, time.time()),
        unreachable_nodes=srun_step.unreachable_nodes(found, interpret.unended(found)),
    )
    seen = interpret.unless_contradicted(found, seen)
    is_left = requeue_policy.slurm_requeues_itself(found.attempts, seen, job, job_id)
    return replace(seen, is_left_to_slurm=is_left)


def ask_nodes(found: AttemptFacts, seen: Evidence) -> Evidence:
    """`evidence` of a lost attempt with its nodes that do not answer, or were rebooted."""
    if unreachable := srun_step.unreachable_nodes(found, found.nodes):
        return replace(seen, unreachable_nodes=unreachable)
    boot_times = client.boot_times(found.nodes) if found.nodes else {}
    return replace(seen, rebooted_nodes=interpret.rebooted(found, boot_times))
