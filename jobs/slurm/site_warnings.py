"""Checks the slurm section of a spec against a site.

An error is a job that Slurm could never start there; a warning is a fact that the user should know.
Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from .. import installation, records
from ..problems import Problem
from ..records.ended import read_attempts
from ..records.queued import PartitionNodes, SlurmSite
from ..rundir import RunDir
from ..spec import Slurm, advised_lead_s
from . import duration
from .site import CRED_EXPIRE_S, KILL_WAIT_S, SLURMD_PORT, Site

# Assumed duration of a stop (notice, save, commit) until the run has measured one.
ASSUMED_STOP_S = 30
EXPEDITE = "expedite"  # of --requeue, Slurm 25.11
OVERLAP = (20, 11)  # the first Slurm whose srun has --overlap


def check(requested: Slurm, sites: Sequence[Site], stop_s: float | None = None) -> list[Problem]:
    """Return all problems, errors first.

    sites: one for each partition that the spec names. Slurm takes any of them, so only what is
        wrong with all of them is an error.
    stop_s: how long the run's slowest stop took; None before the first one.
    """
    mails = list(_mails(requested))
    each = [[*_limits(requested, site), *_stops(requested, site, stop_s), *mails] for site in sites]
    if any(not any(problem.is_error for problem in problems) for problems in each):
        each = [[p for p in problems if not p.is_error] for problems in each]
    unique = dict.fromkeys(problem for problems in each for problem in problems)
    return sorted(unique, key=lambda problem: not problem.is_error)


def _warning(key: str, what: str, hint: str) -> Problem:
    """Return a warning about a key of the section slurm."""
    return Problem(("slurm", key), what, hint, is_error=False)


def _limits(requested: Slurm, site: Site) -> Iterator[Problem]:
    """Yield requests outside of the partition's limits.

    Slurm queues such a job and never starts it (EnforcePartLimits=NO).
    """
    partition, where = site.partition, f"partition {site.partition.name}"
    # Otherwise a QOS or a plugin may set other limits than the partition's.
    is_sure = not (requested.qos or partition.qos or site.config.chooses_partition)
    warnings = []
    time_s = duration.parse_or_zero(requested.time)
    if partition.max_time_s is not None and time_s > partition.max_time_s:
        most = duration.canonical(partition.max_time_s)
        what = f"{requested.time} is above the limit of {where}, {most}: the job would never start"
        hint = f"write {most}; a longer run continues in its next job"
        warnings.append(_warning("time", what, hint))
    fewest = requested.fewest_job_nodes
    if partition.max_nodes is not None and fewest > partition.max_nodes:
        what = f"{fewest} is above the limit of {where}, {partition.max_nodes}"
        hint = "write fewer nodes, or another slurm.partition"
        warnings.append(_warning("nodes", f"{what}: the job would never start", hint))
    if requested.job_nodes < partition.min_nodes:
        what = f"{requested.job_nodes} is below the minimum of {where}, {partition.min_nodes}"
        hint = "write more nodes, or another slurm.partition"
        warnings.append(_warning("nodes", f"{what}: the job would never start", hint))
    yield from (replace(warning, is_error=is_sure) for warning in warnings)
    if partition.state != "UP":
        what = f"{where} is {partition.state}: the job waits until that changes"
        yield _warning("partition", what, "sinfo lists the other partitions")


def _stops(requested: Slurm, site: Site, stop_s: float | None) -> Iterator[Problem]:
    """Yield what a preemption or a time limit at this site does to the run."""
    partition, mode = f"partition {site.partition.name}", site.preempt_mode
    by_qos = site.config.preempt_type == "qos" and site.qos_name
    where = f"QOS {site.qos_name}" if by_qos else partition
    if mode == "CANCEL":
        yield _cancels(requested, where)
    if site.preemption_s is not None and site.preemption_s < (stop_s or ASSUMED_STOP_S):
        grace_s, kill_wait_s = site.grace_time_s, site.config.kill_wait_s
        given = f"{where} preempts with {grace_s} s of grace and kills {kill_wait_s} s later"
        took = "a save may take longer" if stop_s is None else f"a stop took {stop_s:.0f} s"
        hint = "set checkpoint.every_minutes: the next attempt repeats the steps after that save"
        yield _warning("partition", f"{given}; {took}", hint)
    if stop_s is not None and stop_s > requested.signal_lead_s:
        what = f"{requested.signal_lead_s} s is shorter than the slowest stop, {stop_s:.0f} s"
        yield _warning("signal_lead_s", what, f"write {advised_lead_s(stop_s)}")
    if requested.sbatch_args.get("requeue") == EXPEDITE and not site.config.has_expedited:
        what = "this site has no expedited requeue (SlurmctldParameters=enable_expedited_requeue)"
        yield Problem(("slurm", "sbatch_args", "requeue"), what, "leave it out")
    found = re.match(r"(\d+)\.(\d+)", site.config.version)
    if requested.chooses_nodes and found and (int(found[1]), int(found[2])) < OVERLAP:
        key = "nodes" if requested.is_range else "spare_nodes"
        value = requested.most_nodes if requested.is_range else 0
        what = f"this needs srun --overlap (Slurm 20.11), and this Slurm is {found[0]}"
        hint = f"write {value}: then a lost node costs a requeue"
        yield Problem(("slurm", key), what, hint)
    if not site.config.is_requeued and requested.restart != "successor":
        what = "this site requeues only jobs that ask for it (JobRequeue=0), as this job does"
        hint = "if Slurm refuses the requeue, write slurm.restart=successor"
        yield _warning("restart", what, hint)
    if site.partition.alloc_nodes != "ALL" and is_successor_wanted(requested, site):
        nodes = site.partition.alloc_nodes
        what = f"{partition} accepts jobs from {nodes} only, so a job may not be able to submit one"
        resume = installation.command("resume")
        yield _warning("restart", what, f"{resume} continues the run if no successor is queued")


def _mails(requested: Slurm) -> Iterator[Problem]:
    """Yield a mail option that sends mails at each restart. Source: sbatch(1), --mail-type."""
    for name, value in requested.sbatch_args.items():
        if name.replace("_", "-").startswith("mail-t"):
            types = {each.strip() for each in str(value).upper().split(",")}
            if repeats := sorted(types & {"ALL", "BEGIN", "REQUEUE"}):
                what = f"{name} {','.join(repeats)}: Slurm sends mails at each restart of the run"
                yield _warning("sbatch_args", what, "notify.mail sends one when the run ends")


def _cancels(requested: Slurm, where: str) -> Problem:
    what = f"{where} cancels what it preempts (PreemptMode=CANCEL)"
    if requested.restart == "requeue":
        return _warning("restart", what, "write auto: a successor job then continues the run")
    return _warning("restart", what, "a successor job waits for its end and continues the run")


def is_successor_wanted(requested: Slurm, site: Site) -> bool:
    """Return whether the run needs a successor job, or its spec requests one."""
    if requested.restart == "auto":
        return site.preempt_mode == "CANCEL"
    return requested.restart == "successor"


def slowest_stop_s(run_dir: RunDir) -> float | None:
    """Return how long the slowest stop of the run took since its warning; None before the first."""
    stops = [record.stop_s for record in read_attempts(run_dir)]
    return max((stop_s for stop_s in stops if stop_s is not None), default=None)


def _requeue_delay_s(requested: Slurm, sites: Sequence[Site]) -> int:
    """Return how long a requeued job of the run waits before it may start."""
    if requested.sbatch_args.get("requeue") == EXPEDITE:
        return 0
    return next((site.config.requeue_delay_s for site in sites), CRED_EXPIRE_S + 1)


def _cluster_of(requested: Slurm, sites: Sequence[Site]) -> str | None:
    """Return the cluster that gets the job; None where Slurm chooses it, or is not known."""
    names = [requested.sbatch_args.get(key) for key in ("clusters", "cluster", "M")]
    chosen = next((str(name) for name in names if name), None)
    if chosen is not None:
        return None if "," in chosen else chosen
    return next((site.config.cluster for site in sites if site.config.cluster), None)


def record_site(run_dir: RunDir, requested: Slurm, sites: Sequence[Site]) -> SlurmSite:
    """Return what this Slurm does with the run's jobs; writes site.json if Slurm answered.

    sites: from `jobs.slurm.site.query`; empty if Slurm did not answer.
    """
    known = SlurmSite(
        cancels_preempted=any(site.preempt_mode == "CANCEL" for site in sites),
        # The trainer compares it with its saves.
        preemption_s=min(
            (site.preemption_s for site in sites if site.preemption_s is not None), default=None
        ),
        kill_wait_s=next((site.config.kill_wait_s for site in sites), KILL_WAIT_S),
        slurmd_port=next((site.config.slurmd_port for site in sites), SLURMD_PORT),
        requeue_delay_s=_requeue_delay_s(requested, sites),
        partition_nodes=tuple(
            PartitionNodes(site.partition.name, site.partition.nodes)
            for site in sites
            if site.partition.nodes
        ),
        cluster=_cluster_of(requested, sites),
        qos=next((site.qos_name for site in sites), None),
        sites=tuple(site.summary for site in sites),
        remarks=tuple(problem.in_one_line for problem in check(requested, sites)),
    )
    if sites:
        records.write(run_dir.site, known)
    return known
