"""The evidence about an attempt that ended: its files, and what Slurm and its nodes answer now."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

from ..console import print_line
from ..records.ended import Evidence
from ..rundir import RunDir
from ..runs import interpret, run_lock
from ..runs.interpret import AttemptFacts
from ..slurm import client, job_state
from ..slurm.hostlist import expand_hostlist
from . import exclude_nodes, requeue_policy, signs, srun_step, suspects


def of_ended(
    run_dir: RunDir,
    facts: AttemptFacts,
    me: run_lock.Owner,
    stops: tuple[str, ...],
    srun_exit: int,
) -> Evidence:
    """Return what ended the attempt; Slurm is not asked where the run is certainly complete."""
    state = "LOCAL" if me.is_local else "UNKNOWN"
    evidence = interpret.rank_evidence(facts, state, srun_exit, stops)
    if not me.is_local and evidence.outcome != "completed":
        return ask_slurm(run_dir, facts, evidence, me.job_id)
    return with_signs(run_dir, facts, evidence)


def ask_slurm(run_dir: RunDir, facts: AttemptFacts, evidence: Evidence, job_id: str) -> Evidence:
    """Return `evidence` with what Slurm shows of the job now, and what speaks against nodes."""
    job = client.show_job_patiently(job_id)
    if job is None:
        print_line(f"attempt {facts.attempt}: slurmctld does not show job {job_id}")
        return with_signs(run_dir, facts, evidence)
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
    if evidence.unreachable_nodes and not (facts.errors or facts.agent_errors):
        evidence = replace(evidence, error=None)  # what the other agents left is a consequence
    evidence = with_signs(run_dir, facts, evidence)
    evidence = replace(evidence, has_spares=has_spares(facts, evidence, job))
    is_left = requeue_policy.slurm_requeues_itself(facts.attempts, evidence, job, job_id)
    return replace(evidence, is_left_to_slurm=is_left)


def has_spares(facts: AttemptFacts, evidence: Evidence, job: client.Job) -> bool:
    """Return whether a job has enough fit nodes for the next attempt after the loss of some."""
    if not facts.spec.slurm.chooses_nodes or job.state != "RUNNING":
        return False
    lost = {*evidence.bad_nodes, *evidence.lost_nodes}
    since = exclude_nodes.counted_since(facts.spec, facts.submission)
    lost |= suspects.left_out(facts.attempts, since).keys()
    others = [node for node in expand_hostlist(job.nodes) if node not in lost]
    idle = [node for node in others if node not in facts.nodes]
    lost |= {*srun_step.unreachable_nodes(facts, idle)}
    return len([node for node in others if node not in lost]) >= facts.spec.slurm.fewest_nodes


def ask_nodes(run_dir: RunDir, facts: AttemptFacts, evidence: Evidence) -> Evidence:
    """Return `evidence` of a lost attempt with its nodes that do not answer, or were rebooted."""
    if unreachable := srun_step.unreachable_nodes(facts, facts.nodes):
        evidence = replace(evidence, unreachable_nodes=unreachable)
    else:
        boot_times = client.boot_times(facts.nodes) if facts.nodes else {}
        evidence = replace(evidence, rebooted_nodes=interpret.rebooted_nodes(facts, boot_times))
    return with_signs(run_dir, facts, evidence)


def with_signs(run_dir: RunDir, facts: AttemptFacts, evidence: Evidence) -> Evidence:
    """Return `evidence` with what speaks against single nodes, and whether it followed the run."""
    states = {}
    is_running = evidence.job_state in job_state.ON_NODES
    if signs.is_failure(evidence) and is_running and not evidence.would_repeat:
        states = client.node_states(facts.nodes)
    found = signs.signs_of(facts, evidence, states)
    if any(not sign.is_left_out for sign in found):
        since = exclude_nodes.counted_since(facts.spec, facts.submission)
        can_do_without = partial(_can_do_without, run_dir, facts)
        found = suspects.confirmed(found, facts.attempts, since, can_do_without)
    evidence = replace(evidence, signs=found)
    return replace(evidence, followed=suspects.followed(evidence, facts.attempts))


def _can_do_without(run_dir: RunDir, facts: AttemptFacts, node: str) -> bool:
    """Return whether the job has enough other fit nodes, or Slurm has them for the job."""
    if facts.can_lose(1):
        return True
    others = expand_hostlist(facts.spec.slurm.exclude or "")
    return bool(exclude_nodes.excludable_nodes(run_dir, facts.spec, [node], others))
