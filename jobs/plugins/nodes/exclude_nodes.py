"""The ExcNodeList of the jobs of a run: the nodes that the user excluded, and the suspected ones.

A list that leaves too few nodes would keep a job pending for ever (BadConstraints, priority 0;
measured on 22.05). So the kit first asks Slurm, with `sbatch --test-only`, whether such a job could
run. Slurm takes features, drained and reserved nodes into account.
"""

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ...commands.queue import test_only
from ...contract.records.queued import Submission
from ...contract.rundir import RunDir
from ...contract.spec import Spec


def counted_since(spec: Spec, submission: Submission) -> float:
    """Return from when on reasons against nodes count for a run, in seconds since the epoch."""
    hours = spec.slurm.suspect_hours
    expired = time.time() - hours * 3600 if hours else math.inf
    return max(expired, submission.nodes_taken_back or 0.0)


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
