"""How often one attempt calls Slurm's commands."""

from pathlib import Path

from ..host import PATH
from . import harm_slurm
from .rows import Row
from .scenario import NAMED_QOS

CLIENTS = ("sbatch", "scancel", "scontrol", "squeue", "sacct", "sinfo")
# One of them asks for the NodeAddr: the first node knows itself as 127.0.1.1, as on a stock Debian,
# and on the site DNS does not know the nodes.
MAX_CALLS = 7
COUNTING = """#!/bin/sh
echo "$SLURM_RESTART_COUNT {name} $*" >>{log}
PATH={path} exec {name} "$@"
"""


def count(folder: Path) -> Path:
    """Put commands into `folder` that record the calls of Slurm's; returns the file of records."""
    log = folder / "calls"
    for name in CLIENTS:
        client = folder / name
        client.write_text(COUNTING.format(name=name, log=log, path=PATH))
        client.chmod(0o755)
    return log


def test_an_attempt_calls_slurm_at_most_seven_times(row: Row, tmp_path: Path) -> None:
    folder = tmp_path / "counting"
    folder.mkdir()
    log = count(folder)
    paced = row.start_with_path(folder, *NAMED_QOS)
    paced.run.wait_for_step(2)
    harm_slurm.preempt(paced.run)
    paced.finish()
    # scontrol expands the nodes' names without a request to the controller.
    calls = [call for call in log.read_text().splitlines() if " show hostnames " not in call]
    # The first start has no restart count.
    attempts = {number: [c for c in calls if c.startswith(f"{number} ")] for number in ("", "1")}
    assert sum(map(len, attempts.values())) == len(calls)
    # Later ones requeue it themselves at the end of its grace, see
    # jobs.plugins.sites.requeue_policy.
    assert ("requeue" in "".join(attempts[""])) != harm_slurm.LEFT_TO_SLURM
    assert all(len(made) <= MAX_CALLS for made in attempts.values()), "\n".join(calls)
