"""What this Slurm does with a job in its partition and QOS when it preempts the job."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ...contract import records
from ...contract.rundir import RunDir
from ...contract.spec import Slurm
from ...slurm.cluster import settings, show_accounting, show_partitions

FILE = "preemption.json"


@dataclass(frozen=True)
class Preemption:
    """preemption.json: whether Slurm cancels the run's jobs where it preempts them.

    qos: the one that decides it, where PreemptType is qos.
    """

    cancels: bool
    qos: str | None = None


@dataclass(frozen=True)
class Site:
    """What Slurm does with a job that it preempts in one partition or QOS.

    qos: the QOS, where QOS decide and the job requests one. is_clusters: the mode is the cluster's,
    because the QOS has none or is not known.
    """

    name: str
    preempt_mode: str
    qos: str | None = None
    is_clusters: bool = False


def mode_of(text: str) -> str:
    """Return REQUEUE of `GANG,REQUEUE`: Slurm lists these flags before the mode.

    Source: slurm_protocol_defs.c, preempt_mode_string (PRIORITY: since 25.05).
    """
    flags = ("GANG", "WITHIN", "PRIORITY")
    return next((mode for mode in text.upper().split(",") if mode not in flags), "OFF")


def query(requested: Slurm, known: Mapping[str, str] | None = None) -> list[Site]:
    """Return each partition or QOS that may decide; empty if Slurm does not answer.

    known: the settings of the cluster, if the caller has them.
    Source: slurm.conf(5), PreemptType, PreemptMode. Slurm takes a list of QOS since 24.11.
    """
    values = known or settings()
    kind = values.get("PreemptType", "").removeprefix("preempt/")
    if kind == "partition_prio":
        names = requested.partition.split(",") if requested.partition else []
        return [
            Site(f"partition {each['PartitionName']}", mode_of(each.get("PreemptMode", "OFF")))
            for each in show_partitions(*names if len(names) == 1 else ())
            if each["PartitionName"] in names or (not names and each.get("Default") == "YES")
        ]
    mode = mode_of(values.get("PreemptMode", "OFF"))
    if kind == "qos" and requested.qos:
        return [_qos(name, mode) for name in requested.qos.lower().split(",")]
    if kind == "qos":
        return [Site("this cluster", mode, is_clusters=True)]
    return [Site("this cluster", "OFF")] if values else []


def _qos(name: str, mode_of_cluster: str) -> Site:
    text = show_accounting("qos", f"name={name}", "format=Name,PreemptMode")
    line = next((line for line in text.splitlines() if "|" in line), "")
    mode = line.strip().partition("|")[2]
    is_clusters = mode.lower() in ("", "cluster")
    return Site(f"QOS {name}", mode_of_cluster if is_clusters else mode_of(mode), name, is_clusters)


def record(run_dir: RunDir, sites: list[Site]) -> Preemption | None:
    """Write what these sites do with the run's jobs, and return it; None where it is not known.

    Which QOS a job gets that requests none, only the job knows.
    """
    if not sites or (sites[0].is_clusters and sites[0].qos is None):
        return None
    known = Preemption(any(site.preempt_mode == "CANCEL" for site in sites), sites[0].qos)
    records.write(run_dir.path / FILE, known)
    return known


def of_job(run_dir: RunDir, requested: Slurm) -> Preemption | None:
    """Return what preemption does with this job; None without an answer.

    It is asked where submit did not know it, or the site gave the job another QOS than that.
    """
    known = records.read(Preemption, run_dir.path / FILE)
    own_qos = os.environ.get("SLURM_JOB_QOS")
    if known is not None and (known.qos is None or own_qos in (None, known.qos)):
        return known
    return record(run_dir, query(replace(requested, qos=own_qos or requested.qos)))
