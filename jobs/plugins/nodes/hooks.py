"""The hooks of the plugin: what an attempt shows of nodes, what follows, and the nodes of the next.

What only an attempt calls is imported there: a submit must not wait for it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ...contract.batch_sizes import global_batch_size
from ...contract.problems import Problem
from ...contract.records.ended import AttemptRecord, Evidence
from ...contract.records.queued import Submission
from ...contract.rundir import RunDir
from ...contract.spec import Spec

if TYPE_CHECKING:
    from ...attempt.decision import Decision, Ending
    from ...contract.records.nodes import Chosen
    from ...runs.facts import AttemptFacts
    from ...runs.run_lock import Owner
    from ...slurm.job import Job


def problems(spec: Spec) -> Iterator[Problem]:
    """Yield wrong ranges: their steps must not differ in size."""
    slurm, train, most = spec.slurm, spec.train, spec.slurm.most_nodes
    if slurm.fewest_nodes > most:
        hint = f"write {most}-{slurm.fewest_nodes}"
        yield Problem(("slurm", "nodes"), f"{slurm.nodes} is backwards", hint)
    if slurm.is_range and spec.launch.is_trainer and train.global_batch_size is None:
        what = f"is needed with slurm.nodes {slurm.nodes}, so that all steps have the same size"
        hint = f"write global_batch_size: {global_batch_size(spec)}"
        hint += ", without grad_accum_steps" if train.grad_accum_steps > 1 else ""
        yield Problem(("train", "global_batch_size"), what, hint, (("slurm", "nodes"),))


def exclude(
    run_dir: RunDir,
    spec: Spec,
    submission: Submission,
    attempts: Sequence[AttemptRecord],
    listed: Sequence[str],
) -> Sequence[str]:
    """Return the nodes that a job of the run must not get: also the suspected ones.

    Asks Slurm only if a bad node is not listed, or a listed one may be used again.
    """
    from ...base.console import print_line
    from ...slurm.cluster import expand_hostlist
    from . import suspects
    from .exclude_nodes import counted_since, excludable_nodes
    from .records import past_of

    past, hours = past_of(attempts), spec.slurm.suspect_hours
    bad = suspects.left_out(past, counted_since(spec, submission))
    ours = suspects.left_out(past, 0.0).keys() - expand_hostlist(spec.slurm.exclude or "")
    others = [node for node in listed if node not in ours]
    if {*listed} - {*others} == bad.keys() - {*others}:
        return listed
    nodes = excludable_nodes(run_dir, spec, bad, others)
    for node, reason in bad.items():
        if node in nodes:
            print_line(f"node {node} is left out of the next attempts for {hours} h: {reason.text}")
        else:
            print_line(f"node {node} cannot be left out, too few other nodes: {reason.text}")
    return [*others, *nodes]


def choose_nodes(
    run_dir: RunDir, facts: AttemptFacts, me: Owner, nodes: Sequence[str]
) -> Chosen | None:
    """Return the nodes of the next attempt, where it may have a part of the job's."""
    from .choose_nodes import choose, is_needed

    if me.is_local or not is_needed(facts.spec.slurm):
        return None
    return choose(run_dir, facts, me.job_id, nodes)


def evidence(
    run_dir: RunDir, facts: AttemptFacts, me: Owner, found: Evidence, job: Job | None
) -> Evidence:
    """Return the evidence with what speaks against single nodes, and whether there are others."""
    from .of_nodes import of_nodes

    return of_nodes(run_dir, facts, me, found, job)


def decide(facts: AttemptFacts, ending: Ending, decision: Decision) -> Decision:
    """Return the decision after an attempt, which is another one where a node is at fault."""
    from ...attempt import decision as rules
    from .decision import after_fault_of_node

    history = rules.history_of(facts.attempts, time.time())
    return after_fault_of_node(ending, decision, history, rules.budget_of(facts.spec))
