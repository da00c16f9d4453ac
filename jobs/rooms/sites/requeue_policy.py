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
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence

from ...attempt.decision import Action
from ...records.ended import AttemptRecord, Evidence
from ...slurm import client
from ...slurm.site import number, settings
from ...spec import Slurm
from .preemption import Site, query

SINCE_VERSION, BEFORE_VERSION = (24, 5), (26, 5)
# Slurm also counts the job's first launch, and one empty start after a requeue by the kit.
_OTHER_LAUNCHES = 2


def slurm_requeues_itself(
    attempts: Sequence[AttemptRecord], evidence: Evidence, job: client.Job, job_id: str
) -> bool:
    """Return whether the kit leaves the requeue to Slurm, which requeues the job once it ends."""
    is_in_grace = job.is_preempted and job.state == "RUNNING" and job.can_requeue
    if not is_in_grace or is_expedited(job) or evidence.outcome == "completed":
        return False
    values = settings()
    if not is_below_launch_limit(values, attempts, job_id):
        return False
    # Its spec may have requested others.
    partition = os.environ.get("SLURM_JOB_PARTITION") or "?"
    granted = Slurm(partition=partition, qos=os.environ.get("SLURM_JOB_QOS"))
    return any(map(requeues_preempted, query(granted, values)))


def is_expedited(job: client.Job) -> bool:
    """Return whether the user, or a plugin of the site, asked for --requeue=expedite."""
    # Since 25.11, at the end of a line of flags. Source: scontrol/info_job.c
    flags = r"(?:(?:Gres|Kill|Spread)\w+=\w+ )*"
    return bool(client.field_of(job.text, rf"{flags}(ExpeditedRequeue=Yes)"))


def is_batch(job: client.Job) -> bool:
    """Return whether Slurm can start a job again; of salloc and srun it starts nothing."""
    return client.field_of(job.text, r"Requeue=\d+ Restarts=\d+ BatchFlag=(\d)") != "0"


def is_below_launch_limit(
    settings: Mapping[str, str], attempts: Iterable[AttemptRecord], job_id: str
) -> bool:
    """Return whether one more requeue by Slurm keeps the job's launches within MaxBatchRequeue.

    False for a Slurm that does no such requeue, or none beside one by the kit.
    """
    version = re.match(r"(\d+)\.(\d+)", settings.get("SLURM_VERSION", ""))
    if version is None or not SINCE_VERSION <= (int(version[1]), int(version[2])) < BEFORE_VERSION:
        return False
    mine = [record.decision for record in attempts if record.job_id == job_id]
    most = number(settings.get("MaxBatchRequeue", ""), 5)
    return mine.count(Action.WAIT) + 1 + _OTHER_LAUNCHES <= most


def requeues_preempted(here: Site) -> bool:
    """Return whether the site surely requeues preempted jobs; a QOS may set its own PreemptMode."""
    has_own_mode = here.qos is not None and here.qos[0] is not None
    is_sure = here.preempt_type == "partition_prio" or has_own_mode
    return is_sure and here.preempt_mode == "REQUEUE"
