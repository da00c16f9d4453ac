"""The evidence about an attempt that ended: its files, and what Slurm and its nodes answer now."""

from __future__ import annotations

import time
from dataclasses import replace

from slurm_job_kit.jobs.attempt import requeue_policy, srun_step
from slurm_job_kit.jobs.console import print_line
from slurm_job_kit.jobs.records.ended import Evidence
from slurm_job_kit.jobs.runs import interpret, run_lock
from slurm_job_kit.jobs.runs.interpret import AttemptFacts
from slurm_job_kit.jobs.slurm import client

# A slurmctld that is only busy answers in less time.
SLOW_ANSWER_S = 5.0


def of_ended(
    facts: AttemptFacts, me: run_lock.Owner, stops: tuple[str, ...], srun_exit: int
) -> Evidence:
    """Return what ended the attempt; Slurm is not asked where the run is certainly complete."""
    evidence = interpret.rank_evidence(facts, "LOCAL" if me.is_local else "UNKNOWN", srun_exit)
    if not evidence.signals:
        signals = stops or interpret.stop_signals_at_start(facts, srun_exit)
        evidence = interpret.unless_contradicted(facts, replace(evidence, signals=signals))
    if not me.is_local and (evidence.outcome != "completed" or interpret.is_by_exit_code(facts)):
        evidence = ask_slurm(facts, evidence, me.job_id)
    return evidence


def ask_slurm(facts: AttemptFacts, evidence: Evidence, job_id: str) -> Evidence:
    """Return `evidence` with what Slurm shows of the job now; unchanged if it does not answer."""
    asked = time.monotonic()
    job = client.show_job_patiently(job_id)
    waited_s = time.monotonic() - asked
    if waited_s > SLOW_ANSWER_S:
        evidence = replace(evidence, slurmctld_away_s=round(waited_s, 1))
    if job is None:
        print_line(f"attempt {facts.attempt}: slurmctld does not show job {job_id}")
        return evidence
    evidence = replace(
        evidence,
        job_state=job.state,
        job_reason=job.reason,
        is_preempted=job.is_preempted,
        is_requeued=job.restarts > client.restart_count(),
        can_requeue=job.can_requeue,
        has_successor=interpret.successor_of(facts, job_id) is not None,
        is_near_limit=interpret.is_near_limit(facts, time.time()),
        unreachable_nodes=srun_step.unreachable_nodes(facts, interpret.nodes_without_end(facts)),
    )
    evidence = interpret.unless_contradicted(facts, evidence)
    is_left = requeue_policy.slurm_requeues_itself(facts.attempts, evidence, job, job_id)
    return replace(evidence, is_left_to_slurm=is_left)


def ask_nodes(facts: AttemptFacts, evidence: Evidence) -> Evidence:
    """Return `evidence` of a lost attempt with its nodes that do not answer, or were rebooted."""
    if unreachable := srun_step.unreachable_nodes(facts, facts.nodes):
        return replace(evidence, unreachable_nodes=unreachable)
    boot_times = client.boot_times(facts.nodes) if facts.nodes else {}
    return replace(evidence, rebooted_nodes=interpret.rebooted_nodes(facts, boot_times))
