"""How an attempt ended: its files, and what Slurm and its nodes answer now."""

import time
from dataclasses import replace

from .. import hooks
from ..base.console import print_line
from ..contract.records.ended import Evidence
from ..contract.rundir import RunDir
from ..runs import run_lock
from ..runs.evidence import rank_evidence
from ..runs.facts import AttemptFacts
from ..slurm import ask
from ..slurm.job import Job, restart_count, show_job
from . import srun_step
from .ending import Ending, ending_of

# The longest pause before a retry, and its start.
RETRY_S = 120.0


def of_ended(
    run_dir: RunDir, facts: AttemptFacts, me: run_lock.Owner, stops: tuple[str, ...], srun_exit: int
) -> Ending:
    """Return how the attempt ended; Slurm is not asked where the run is certainly complete."""
    state = "LOCAL" if me.is_local else "UNKNOWN"
    evidence, job = rank_evidence(facts, state, srun_exit, stops), None
    ending = ending_of(facts, evidence, time.time())
    if not me.is_local and evidence.outcome != "completed":
        job = show_job(me.job_id, ask.PATIENCE_S)
        if job is None:
            print_line(f"attempt {facts.attempt}: slurmctld does not show job {me.job_id}")
        else:
            evidence = _with_job(facts, ending, job)
    return replace(ending, evidence=hooks.evidence(run_dir, facts, me, evidence, job))


def _with_job(facts: AttemptFacts, ending: Ending, job: Job) -> Evidence:
    """Return the evidence with what Slurm shows of the job now, and the nodes without an answer."""
    evidence = replace(
        ending.evidence,
        job_state=job.state,
        job_reason=job.reason,
        is_preempted=job.is_preempted,
        is_requeued=job.restarts > restart_count(),
        can_requeue=job.can_requeue,
        is_near_limit=is_near_limit(facts, time.time()),
        unreachable_nodes=srun_step.unreachable_nodes(facts, ending.silent),
    )
    if evidence.unreachable_nodes and not (facts.of_nodes.errors or facts.of_nodes.agent_errors):
        evidence = replace(evidence, error=None)  # what the other agents left is a consequence
    return evidence


def is_near_limit(facts: AttemptFacts, now: float) -> bool:
    """Return whether the time limit's warning, sent once by Slurm, might come between two steps."""
    deadline = None if facts.plan is None else facts.plan.deadline
    return deadline is not None and now > deadline - facts.spec.slurm.signal_lead_s - RETRY_S


def of_lost(run_dir: RunDir, facts: AttemptFacts, me: run_lock.Owner, is_automatic: bool) -> Ending:
    """Return how an attempt ended whose batch script was killed.

    is_automatic: no user asked for this start. Then a node may have failed, and the batch script
    with it: its nodes are asked now.
    """
    evidence = rank_evidence(facts)
    if is_automatic and not me.is_local:
        unreachable = srun_step.unreachable_nodes(facts, facts.nodes)
        evidence = replace(evidence, unreachable_nodes=unreachable)
        evidence = hooks.evidence(run_dir, facts, me, evidence, None)
    return ending_of(facts, evidence, time.time(), is_automatic)
