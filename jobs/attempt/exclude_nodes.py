"""Leaves bad nodes out of a job's next starts; jobs.attempt.suspects says which ones these are.

The kit sets the job's ExcNodeList. Slurm accepts it only while the job is pending, so the kit sets
it after the requeue. A new list replaces the old one, so it repeats the nodes that the user
excluded. A list that leaves too few nodes would keep the job pending for ever (BadConstraints,
priority 0; measured on 22.05). So the kit first asks Slurm, with `sbatch --test-only`, whether such
a job could run. Slurm takes features, drained and reserved nodes into account. Standard library
only.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from .. import hooks
from ..console import print_line
from ..environment import Door
from ..records.ended import read_attempts
from ..records.queued import Submission
from ..rundir import RunDir
from ..slurm import client, sbatch
from ..slurm.hostlist import expand_hostlist
from ..spec import Spec
from . import suspects

if TYPE_CHECKING:
    from ..runs.interpret import AttemptFacts


def counted_since(spec: Spec, submission: Submission) -> float:
    """Return from when on signs against nodes count for a run, in seconds since the epoch."""
    hours = spec.slurm.suspect_hours
    expired = time.time() - hours * 3600 if hours else math.inf
    return max(expired, submission.nodes_taken_back or 0.0)


def update_exclude_list(run_dir: RunDir, facts: AttemptFacts, job_id: str, current: str) -> None:
    """Set the ExcNodeList of a pending job to its bad nodes; `current` is the list now.

    Calls Slurm only if the last attempt found a bad node, or a bad node may be used again.
    """
    spec, hours = facts.spec, facts.spec.slurm.suspect_hours
    newest = facts.last.evidence.bad_nodes if facts.last is not None else ()
    requested, listed = expand_hostlist(spec.slurm.exclude or ""), expand_hostlist(current)
    bad = suspects.left_out(facts.attempts, counted_since(spec, facts.submission))
    ever_bad = suspects.left_out(facts.attempts, 0.0).keys()
    others = [node for node in listed if node not in ever_bad or node in requested]
    ours = {*listed} - {*others}
    if ours <= bad.keys() and not newest:
        return
    nodes = excludable_nodes(run_dir, spec, bad, others)
    problem = client.set_excluded(job_id, [*others, *nodes]) if {*nodes} != ours else ""
    for node, (_, sign) in bad.items():
        if node in nodes and not problem:
            print_line(f"node {node} is left out of the next attempts for {hours} h: {sign.text}")
        else:
            why = problem or "too few others are left for this job"
            print_line(f"node {node} may take part in the next attempt ({why}): {sign.text}")
    for node in sorted(ours - bad.keys()):
        print_line(
            f"node {node} may take part in the next attempt again{problem and f': {problem}'}"
        )


def without_bad_nodes(run_dir: RunDir, spec: Spec, before: Submission) -> Spec:
    """Return the spec for a new submit of a run, with its recent bad nodes in slurm.exclude.

    before: the run's submission so far.
    """
    bad = suspects.left_out(read_attempts(run_dir), counted_since(spec, before))
    requested = expand_hostlist(spec.slurm.exclude or "")
    nodes = excludable_nodes(run_dir, spec, bad, requested)
    for node in nodes:
        print_line(f"node {node} is left out: {bad[node].sign.text}")
    exclude = ",".join([*requested, *nodes]) or None
    return replace(spec, slurm=replace(spec.slurm, exclude=exclude)) if nodes else spec


def update_successor(run_dir: RunDir, facts: AttemptFacts, successor: str | None) -> None:
    """Update the ExcNodeList of the successor job, only if the last attempt found a bad node."""
    is_needed = facts.last is not None and bool(facts.last.evidence.bad_nodes)
    job = client.show_job(successor) if successor and is_needed else None
    if successor is not None and job is not None:
        update_exclude_list(run_dir, facts, successor, job.excluded)


def excludable_nodes(
    run_dir: RunDir, spec: Spec, bad: Collection[str], others: list[str]
) -> list[str]:
    """Return the bad nodes that can be left out of the job; the newest alone where all cannot."""
    more = [node for node in bad if node not in others]
    for nodes in (more, more[:1]):
        if nodes and could_run_without(run_dir, spec, [*others, *nodes]):
            return nodes
    return []


def could_run_without(run_dir: RunDir, spec: Spec, nodes: list[str]) -> bool:
    """Return whether Slurm would ever start this job without these nodes; submits no job."""
    without = replace(spec, slurm=replace(spec.slurm, exclude=",".join(nodes)))
    argv = sbatch.sbatch_argv(without, run_dir)
    answer = client.test_only(*hooks.start(Door.SBATCH, argv, os.environ, spec))
    return answer is not None and answer.returncode == 0
