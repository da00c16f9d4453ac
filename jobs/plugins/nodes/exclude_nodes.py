"""The ExcNodeList of the jobs of a run: the nodes that the user excluded, and the suspected ones.

A list that leaves too few nodes would keep a job pending for ever (BadConstraints, priority 0;
measured on 22.05). So the kit first asks Slurm, with `sbatch --test-only`, whether such a job could
run. Slurm takes features, drained and reserved nodes into account.
"""

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ...base.console import print_line
from ...commands.queue import test_only
from ...contract.records.ended import AttemptRecord
from ...contract.records.queued import Submission
from ...contract.rundir import RunDir
from ...contract.spec import Spec
from ...slurm.cluster import expand_hostlist
from . import suspects
from .records import past_of


def counted_since(spec: Spec, submission: Submission) -> float:
    """Return from when on reasons against nodes count for a run, in seconds since the epoch."""
    hours = spec.slurm.suspect_hours
    expired = time.time() - hours * 3600 if hours else math.inf
    return max(expired, submission.nodes_taken_back or 0.0)


def excluded(
    run_dir: RunDir,
    spec: Spec,
    submission: Submission,
    attempts: Sequence[AttemptRecord],
    listed: Sequence[str],
) -> Sequence[str]:
    """Return the nodes that a job of the run must not get. listed: those that it must not get now.

    Asks Slurm only if a bad node is not listed, or a listed one may be used again.
    """
    past = past_of(attempts)
    bad = suspects.left_out(past, counted_since(spec, submission))
    ours = suspects.left_out(past, 0.0).keys() - expand_hostlist(spec.slurm.exclude or "")
    others = [node for node in listed if node not in ours]
    if {*listed} - {*others} == bad.keys() - {*others}:
        return listed
    nodes = excludable_nodes(run_dir, spec, bad, others)
    for node, reason in bad.items():
        if node in nodes:
            hours = spec.slurm.suspect_hours
            print_line(f"node {node} is left out of the next attempts for {hours} h: {reason.text}")
        else:
            print_line(f"node {node} cannot be left out, too few other nodes: {reason.text}")
    return [*others, *nodes]


def excludable_nodes(
    run_dir: RunDir, spec: Spec, bad: Iterable[str], others: Sequence[str]
) -> list[str]:
    """Return the bad nodes without which Slurm would ever start the job; the newest, if not all."""
    more = [node for node in bad if node not in others]
    for nodes in (more, more[:1]):
        without = replace(spec.slurm, exclude=",".join([*others, *nodes]))
        if nodes and test_only(replace(spec, slurm=without), run_dir)[0]:
            return nodes
    return []
