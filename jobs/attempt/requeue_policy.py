"""Who starts a job again that stops inside the grace of its preemption: we, or Slurm itself.

Since 24.05 Slurm requeues a job that ends inside its grace, whatever its exit code, where
preempted jobs are requeued. After a `scontrol requeue` instead it still does so when the run is
complete, in a later start: one for nothing. But it counts what it requeues so as failed launches
and, at MaxBatchRequeue (5), holds the job until an administrator releases it. So the first few
are left to Slurm, and the rest, of which only the last one makes a start for nothing, are ours.
Source: a689104d15 of Slurm; slurmctld/job_mgr.c, _job_complete, _handle_requeue_limit.
Standard library only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence

from jobs.attempt.decision import Action, Evidence
from jobs.records import AttemptRecord
from jobs.slurm import client, site
from jobs.slurm.site import Config, Site
from jobs.spec import Slurm

SINCE = (24, 5)
# Counted, too: the job's first launch, and the start for nothing after a requeue of ours.
_OTHER_LAUNCHES = 2


def is_left_to_slurm(
    attempts: Sequence[AttemptRecord], seen: Evidence, job: client.Job, job_id: str
) -> bool:
    """Whether Slurm, and not we, should requeue the job: it will as soon as the job ends."""
    if not (job.is_preempted and job.state == "RUNNING" and job.can_requeue):
        return False
    # Which nodes to leave out can only be said to a job that is pending.
    if seen.outcome == "completed" or seen.bad_nodes:
        return False
    config = site.query_config()
    if config is None or not is_among_the_first(config, attempts, job_id):
        return False
    return any(map(requeues, site.query(where(os.environ), config)))


def is_among_the_first(config: Config, attempts: Iterable[AttemptRecord], job_id: str) -> bool:
    """Whether Slurm may still count a failed launch, after those of earlier attempts."""
    version = re.match(r"(\d+)\.(\d+)", config.version)
    if version is None or (int(version[1]), int(version[2])) < SINCE:
        return False
    mine = [record.decision for record in attempts if record.job_id == job_id]
    return mine.count(Action.WAIT) + 1 + _OTHER_LAUNCHES <= config.max_batch_requeue


def where(environ: Mapping[str, str]) -> Slurm:
    """The partition and the QOS that the job got, whatever its spec asked for."""
    partition = environ.get("SLURM_JOB_PARTITION") or "?"
    return Slurm(partition=partition, qos=environ.get("SLURM_JOB_QOS"))


def requeues(here: Site) -> bool:
    """Whether it is sure that preempted jobs are requeued here; a QOS may be its own master."""
    is_sure = here.config.preempt_type == "partition_prio" or here.qos is not None
    return is_sure and here.preempt_mode == "REQUEUE"
