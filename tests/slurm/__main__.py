"""A real Slurm cluster on this one machine, for trying things out: `make cluster-up`, `-down`.

With KIT_TEST_SITE=1 it has the second shape, see `user_site`.
"""

import shlex
import sys
from pathlib import Path

from . import conf, host
from .cluster import Cluster, ClusterError
from .user_cluster import UserCluster, cluster_at
from .user_site import OTHER, STUDENT

_ROOT = Path(__file__).parents[2] / ".cluster"
_UP = """\
A Slurm cluster is up: nodes {nodes}, files in {root}. Type next:

    {path}export SLURM_CONF={slurm_conf}
    sinfo
    srun --nodes=2 hostname

Partitions: batch (default) and nograce are preempted and requeued by urgent; jobs in batch get
{grace} s to save before they end, jobs in nograce none.
"""
_USERS = """
These commands are the administrator's. A shell of an ordinary user on the login machine:

    {student}

Put {other} for {name} to preempt this user's jobs with those of a second one.
"""


def main(action: str) -> int:
    try:
        {"up": _up, "down": Cluster.stop}[action](cluster_at(_ROOT))
    except (ClusterError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _up(cluster: Cluster) -> None:
    if cluster.daemon_pid(conf.CONTROLLER) is None:
        cluster.start()
    elif (cluster.site.conf_dir / "slurmdbd.conf").exists() != isinstance(cluster, UserCluster):
        raise ClusterError(f"{cluster.root}: one of another shape is up; make cluster-down ends it")
    else:
        print("It is up already; make cluster-down ends it, and all its jobs.\n")
    text = _UP.format(
        nodes=", ".join(cluster.nodes),
        root=cluster.root,
        slurm_conf=cluster.env["SLURM_CONF"],
        grace=conf.GRACE_TIME_S,
        path=f"export PATH={host.PREFIX}/bin:$PATH\n    " if host.PREFIX else "",
    )
    if isinstance(cluster, UserCluster):
        shell = shlex.join(cluster.shell(STUDENT))
        text += _USERS.format(student=shell, name=STUDENT.name, other=OTHER.name)
    print(text, end="")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
