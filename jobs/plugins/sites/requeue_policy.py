"""Whether Slurm or the kit requeues a job that stops in the grace of its preemption.

From 24.05 to 25.11 Slurm itself requeues a job that ends in its grace, whatever the exit code, if
the site requeues preempted jobs. If the kit does it instead, the job has one empty start when the
run is complete. But Slurm counts its own requeues as failed launches, and holds the job at
MaxBatchRequeue (5 by default); an expedited job (25.11) it holds at once. So it does the first few
requeues, and the kit all others. Measured on 24.11.5 and 26.05.5.

Source: commit a689104d15 of Slurm; slurmctld/job_mgr.c, _job_complete, _handle_requeue_limit,
batch_requeue_fini.
"""

import os
import re
from collections.abc import Sequence

from ...attempt.decision import Action
from ...contract.records.ended import AttemptRecord, Evidence
from ...contract.spec import Slurm
from ...slurm.cluster import number, settings
from ...slurm.job import Job, field_of
from .preemption import query

SINCE_VERSION, BEFORE_VERSION = (24, 5), (26, 5)


def slurm_requeues_itself(
    attempts: Sequence[AttemptRecord], evidence: Evidence, job: Job, job_id: str
) -> bool:
    """Return whether the kit leaves the requeue to Slurm, which requeues the job once it ends."""
    is_in_grace = job.is_preempted and job.state == "RUNNING" and job.can_requeue
    is_expedited = "ExpeditedRequeue=Yes" in job.text  # since 25.11; by the user or the site
    if not is_in_grace or is_expedited or evidence.outcome == "completed":
        return False
    values = settings()
    version = re.match(r"(\d+)\.(\d+)", values.get("SLURM_VERSION", ""))
    if version is None or not SINCE_VERSION <= (int(version[1]), int(version[2])) < BEFORE_VERSION:
        return False
    mine = [record.decision for record in attempts if record.job_id == job_id]
    # Slurm also counts the job's first launch, and one empty start after a requeue by the kit.
    launches = mine.count(Action.WAIT) + 3
    if launches > number(values.get("MaxBatchRequeue", ""), 5):
        return False
    # Its spec may have requested others.
    partition = os.environ.get("SLURM_JOB_PARTITION") or "?"
    granted = Slurm(partition=partition, qos=os.environ.get("SLURM_JOB_QOS"))
    here = query(granted, values)
    # Where a QOS has no mode of its own, it is not certain whether the cluster's counts.
    return any(each.preempt_mode == "REQUEUE" and not each.is_clusters for each in here)


def is_batch(job: Job) -> bool:
    """Return whether Slurm can start a job again; of salloc and srun it starts nothing."""
    return field_of(job.text, r"Requeue=\d+ Restarts=\d+ BatchFlag=(\d)") != "0"
