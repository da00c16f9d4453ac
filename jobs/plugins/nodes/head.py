"""Prints where the agents of an attempt meet, on its first node, if the batch script is on another.

python -m jobs.plugins.nodes.head RUN_DIR ATTEMPT NODE...
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ...attempt.open import head_here
from ...contract.rundir import RunDir
from ...contract.spec import Spec
from ...node import rendezvous
from ...slurm.job import job_id_from
from .choose_nodes import HEAD_FOLLOWS


def main(argv: Sequence[str]) -> None:
    """Print the address, how it was found, the port, and this node's interfaces, a line each."""
    run_dir, attempt, *nodes = argv
    launch = Spec.read(RunDir(Path(run_dir)).spec).launch
    resolved = next(iter(rendezvous.resolve(nodes[0])), "")
    head = head_here(launch, str(job_id_from(os.environ)), int(attempt), nodes, resolved)
    print(HEAD_FOLLOWS, head.address, head.how, head.port, *head.interfaces, sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
