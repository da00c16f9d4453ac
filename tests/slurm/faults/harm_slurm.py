"""Harms by Slurm and its users: preemption, time limit, scancel, requeue."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from slurm_job_kit.jobs.plugins import PLUGINS

from ..cluster import Cluster
from ..host import installed_version
from ..kit import REPOSITORY, Kit, Run

_RESTART_TIMEOUT_S = 150
# Whether a job that ends in the grace of its preemption is PREEMPTED, and requeued by Slurm.
ENDS_PREEMPTED = installed_version() >= (24, 5)
# Whether the kit leaves the requeue to Slurm then.
LEFT_TO_SLURM = "sites" in PLUGINS and (24, 5) <= installed_version() < (26, 5)
# The options of a site and of a run with an expedited requeue.
needs_expedited = pytest.mark.skipif(
    installed_version() < (25, 11), reason="Slurm has expedited requeues since 25.11"
)
EXPEDITED = "slurm.sbatch_args.requeue=expedite"
WITH_EXPEDITED = "SlurmctldParameters=enable_expedited_requeue"
# A preemption sends the job's own signal. Slurm 22.05 does not start with the newer setting.
# Source: slurm.conf(5) of each.
OWN_SIGNAL = "PreemptParameters=send_user_signal"
if installed_version() < (23, 2):
    OWN_SIGNAL = "SlurmctldParameters=preempt_send_user_signal"


def restarts(run: Run) -> int:
    """How often Slurm has started the job again."""
    return int(run.cluster.job(run.job_id, check=False).get("Restarts", -1))


def wait_for_restarts(run: Run, number: int) -> None:
    """Wait until Slurm has counted that many restarts; the job may be pending then."""
    reached = f"requeue {number} of job {run.job_id}"
    run.cluster.wait_for(lambda: restarts(run) >= number, reached, _RESTART_TIMEOUT_S)


def begin_preemption(run: Run, *options: str) -> str:
    """Queue a job of a higher priority that ends at once; returns its id.

    It needs every node, unless the options of sbatch say otherwise.
    """
    urgent = ("--partition=urgent", f"--nodes={len(run.cluster.nodes)}", "--exclusive", *options)
    return run.cluster.sbatch(*urgent, "--wrap=true", "--output=/dev/null")


def preempt(run: Run) -> None:
    before = restarts(run)
    begin_preemption(run)
    wait_for_restarts(run, before + 1)


def begin_time_limit(run: Run) -> None:
    """Make the time limit so short that the warning of `slurm.signal_lead_s=110` is due.

    Set while it runs, so that the warning never comes before the first step. Slurm looks at
    limits every 30 s.
    """
    run.cluster.run("scontrol", "update", f"JobId={run.job_id}", "TimeLimit=2")


def reach_time_limit(run: Run) -> None:
    """Let the job reach its time limit, wait for the requeue, then raise the limit."""
    before = restarts(run)
    begin_time_limit(run)
    wait_for_restarts(run, before + 1)
    run.cluster.run("scontrol", "update", f"JobId={run.job_id}", "TimeLimit=10")


def scancel(run: Run) -> None:
    run.cluster.run("scancel", run.job_id)


def requeue(run: Run) -> None:
    """Requeue the job, as an administrator does; no error if it is pending already."""
    run.cluster.run("scontrol", "requeue", run.job_id, check=False)


@contextmanager
def drained(cluster: Cluster) -> Iterator[None]:
    """A block in which no job starts."""
    drain = ("scontrol", "update", f"NodeName={','.join(cluster.nodes)}", "Reason=test")
    cluster.run(*drain, "State=DRAIN")
    yield
    cluster.run(*drain, "State=RESUME")


def submit_again(kit: Kit, run: Run) -> str:
    """Submit a run directory by plain sbatch, although a job owns it; returns the new job's id."""
    output = f"--output={kit.runs_root}/second-%j.out"
    script = REPOSITORY / "slurm/ddp.sbatch"
    words = ("--nodes=3", "--time=10", script, run.dir.path)
    return kit.run("sbatch", "--parsable", output, *words).stdout.strip()
