"""What an attempt shows of its nodes: the reasons against each, and whether there are others."""

import time
from collections.abc import Set
from dataclasses import replace

from ...attempt import srun_step
from ...base.console import print_line
from ...contract.records.ended import Evidence
from ...contract.rundir import RunDir
from ...runs.facts import AttemptFacts
from ...runs.run_lock import Owner
from ...slurm import cluster, job_state
from ...slurm.job import Job, keep_nodes
from . import choose_nodes, suspects
from .exclude_nodes import counted_since, excludable_nodes
from .reasons import is_failure, reasons_of
from .records import PLUGIN, NodesFound, past, past_of


def of_nodes(
    run_dir: RunDir, facts: AttemptFacts, me: Owner, found: Evidence, job: Job | None
) -> Evidence:
    """Return the evidence with what speaks against single nodes, and whether there are others."""
    states = {}
    is_running = found.job_state in job_state.ON_NODES
    if is_failure(found) and is_running and not found.would_repeat:
        states = cluster.of_nodes(facts.nodes, r"State=(\S+)")  # such as DOWN*
    before, since = past_of(facts.attempts), counted_since(facts.spec, facts.submission)

    def can_do_without(node: str) -> bool:
        """Return whether the job has enough other fit nodes, or Slurm has them for the job."""
        if has_spares(facts, found, {node} | suspects.left_out(before, since).keys(), job):
            return True
        excluded = cluster.expand_hostlist(facts.spec.slurm.exclude or "")
        return bool(excludable_nodes(run_dir, facts.spec, [node], excluded))

    reasons = reasons_of(facts, found, states)
    reasons = suspects.confirmed(reasons, before, since, can_do_without)
    now = past(found, time.time(), False, reasons)
    left_out = suspects.left_out([*before, now], since)
    unfit = suspects.unfit([*before, now], since)
    mine = NodesFound(
        reasons,
        has_spares=has_spares(facts, found, unfit, job) and can_stay(found, job, me.job_id),
        followed=suspects.followed(now, before),
        left_out=tuple(left_out.values()),
    )
    has_any = mine != NodesFound()
    return replace(found, plugins={**found.plugins, PLUGIN: mine}) if has_any else found


def has_spares(facts: AttemptFacts, found: Evidence, unfit: Set[str], job: Job | None) -> bool:
    """Return whether a job has enough nodes for the next attempt, without unfit and lost ones."""
    if not choose_nodes.is_needed(facts.spec.slurm) or job is None or job.state != "RUNNING":
        return False
    lost = unfit | {*found.unreachable_nodes}
    others = [node for node in cluster.expand_hostlist(job.nodes) if node not in lost]
    unused = [each for each in others if each not in facts.nodes]
    silent = srun_step.unreachable_nodes(facts, unused)
    return len({*others} - {*silent}) >= facts.spec.slurm.fewest_nodes


def can_stay(found: Evidence, job: Job | None, job_id: str) -> bool:
    """Give lost nodes of a job back; returns whether its next attempt may begin where it is.

    Where Slurm does not take them, it would end the job as soon as it marks one DOWN.
    """
    nodes = [] if job is None or found.is_requeued else cluster.expand_hostlist(job.nodes)
    kept = [node for node in nodes if node not in found.unreachable_nodes]
    if kept == nodes or keep_nodes(job_id, kept):
        return True
    print_line(f"could not release {', '.join(found.unreachable_nodes)}")
    return False
