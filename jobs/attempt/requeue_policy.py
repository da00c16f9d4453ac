"""Whether Slurm or the kit requeues a job that stops in the grace of its preemption.

Since 24.05 Slurm itself requeues a job that ends in its grace, whatever the exit code, if the site
requeues preempted jobs. If the kit calls `scontrol requeue` instead, Slurm still does its own
requeue later, when the run is complete: the job then has one empty start.

But Slurm counts each requeue of its own as a failed launch. At MaxBatchRequeue (5 by default) it
holds the job until an administrator releases it. So the kit leaves the first few requeues to Slurm
and does the others itself. Of those only the last one causes an empty start.

Slurm 26.05 does none after a requeue by the kit, so there the kit does every one. Measured on
26.05.5, and on 24.11.5 the empty start.

An expedited job (25.11) that Slurm requeues so becomes REQUEUE_HOLD, unless an epilog failed: the
kit requeues it on each version.

Source: commit a689104d15 of Slurm; slurmctld/job_mgr.c, _job_complete, _handle_requeue_limit,
batch_requeue_fini.
Standard library only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence

from ..records.ended import AttemptRecord
from ..slurm import client, site
from ..slurm.site import Config, Site
from ..spec import Slurm
from .decision import Action, Evidence

SINCE_VERSION, BEFORE_VERSION = (24, 5), (26, 5)
# Slurm also counts the job's first launch, and one empty start after a requeue by the kit.
_OTHER_LAUNCHES = 2


def slurm_requeues_itself(
    attempts: Sequence[AttemptRecord], evidence: Evidence, job: client.Job, job_id: str
) -> bool:
    """Return whether the kit leaves the requeue to Slurm, which requeues the job once it ends."""
    if not (job.is_preempted and job.state == "RUNNING" and job.can_requeue):
        return False
    if job.is_expedited:
        return False
    if evidence.outcome == "completed":
        return False
    config = site.query_config()
    if config is None or not is_below_launch_limit(config, attempts, job_id):
        return False
    return any(map(requeues_preempted, site.query(allocated_partition(os.environ), config)))


def is_below_launch_limit(config: Config, attempts: Iterable[AttemptRecord], job_id: str) -> bool:
    """Return whether one more requeue by Slurm keeps the job's launches within MaxBatchRequeue.

    False for a Slurm that does no such requeue, or none beside one by the kit.
    """
    version = re.match(r"(\d+)\.(\d+)", config.version)
    number = (0, 0) if version is None else (int(version[1]), int(version[2]))
    if not SINCE_VERSION <= number < BEFORE_VERSION:
        return False
    mine = [record.decision for record in attempts if record.job_id == job_id]
    return mine.count(Action.WAIT) + 1 + _OTHER_LAUNCHES <= config.max_batch_requeue


def allocated_partition(environ: Mapping[str, str]) -> Slurm:
    """Return the partition and QOS in which the job runs; its spec may have requested others."""
    partition = environ.get("SLURM_JOB_PARTITION") or "?"
    return Slurm(partition=partition, qos=environ.get("SLURM_JOB_QOS"))


def requeues_preempted(here: Site) -> bool:
    """Return whether the site surely requeues preempted jobs; a QOS may set its own PreemptMode."""
    has_own_mode = here.qos is not None and here.qos[0] is not None
    is_sure = here.config.preempt_type == "partition_prio" or has_own_mode
    return is_sure and here.preempt_mode == "REQUEUE"
