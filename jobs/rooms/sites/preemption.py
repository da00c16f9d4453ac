"""What this Slurm does with a job in its partition and QOS when it preempts the job."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ... import records
from ...rundir import RunDir
from ...slurm.site import number, settings, show_accounting, show_partitions
from ...spec import Slurm

_PAIR = re.compile(r"(\w+)=(\S+)")


@dataclass(frozen=True)
class Preemption:
    """preemption.json: whether Slurm cancels the run's jobs where it preempts them.

    qos: the one that decides it, where PreemptType is qos.
    """

    cancels: bool
    qos: str | None = None


@dataclass(frozen=True)
class Partition:
    """The settings of `scontrol show partition` that matter to a run."""

    name: str
    is_default: bool
    preempt_mode: str
    nodes: int = 0  # in any state


@dataclass(frozen=True)
class Site:
    """A cluster for a job in one of its partitions. settings: of `scontrol show config`."""

    settings: Mapping[str, str]
    partition: Partition
    # Of the job's QOS, if PreemptType is qos and the QOS is known; no mode: the cluster's.
    qos_mode: str | None = None
    qos_name: str | None = None

    @property
    def preempt_type(self) -> str:
        """What decides on preemption: none, partition_prio or qos."""
        return self.settings["PreemptType"].removeprefix("preempt/")

    @property
    def preempt_mode(self) -> str:
        """What Slurm does to a preempted job. Source: slurm.conf(5), PreemptType, PreemptMode."""
        if self.preempt_type == "partition_prio":
            return self.partition.preempt_mode
        if self.preempt_type == "qos":
            return self.qos_mode or mode_of(self.settings.get("PreemptMode", "OFF"))
        return "OFF"


def mode_of(text: str) -> str:
    """Return REQUEUE of `GANG,REQUEUE`: Slurm lists these flags before the mode.

    Source: slurm_protocol_defs.c, preempt_mode_string (PRIORITY: since 25.05).
    """
    flags = ("GANG", "WITHIN", "PRIORITY")
    return next((mode for mode in text.upper().split(",") if mode not in flags), "OFF")


def parse_partitions(text: str) -> list[Partition]:
    """Return the partitions in the output of `scontrol show partition`."""
    blocks = re.split(r"^(?=PartitionName=)", text, flags=re.MULTILINE)
    return [
        Partition(
            name=values["PartitionName"],
            is_default=values.get("Default") == "YES",
            preempt_mode=mode_of(values.get("PreemptMode", "OFF")),
            nodes=number(values.get("TotalNodes", "")),
        )
        for values in (dict(_PAIR.findall(block)) for block in blocks)
        if "PartitionName" in values
    ]


def parse_qos(text: str) -> str | None:
    """Return the PreemptMode of a QOS from sacctmgr's `NAME|PreemptMode`; None: the cluster's."""
    line = next((line for line in text.splitlines() if "|" in line), "")
    mode = line.strip().partition("|")[2]
    return None if mode.lower() in ("", "cluster") else mode_of(mode)


def query(requested: Slurm, known: Mapping[str, str] | None = None) -> list[Site]:
    """Return one site for each requested partition; empty if Slurm does not answer.

    Where QOS decide on preemption, one for each partition and QOS: Slurm 24.11 takes a list of QOS.
    known: the settings of the cluster, if the caller has them.
    """
    values = known or settings()
    if not values:
        return []
    names = (requested.partition or "").split(",")
    one = [requested.partition] if requested.partition and len(names) == 1 else []
    partitions = parse_partitions(show_partitions(*one))
    chosen = [each for each in partitions if each.name in names]
    if not requested.partition:
        chosen = [each for each in partitions if each.is_default]
    sites = [Site(values, each) for each in chosen]
    if not sites or sites[0].preempt_type != "qos" or not requested.qos:
        return sites
    names = requested.qos.lower().split(",")
    shown = (show_accounting("qos", f"name={name}", "format=Name,PreemptMode") for name in names)
    modes = dict(zip(names, map(parse_qos, shown), strict=True))
    return [replace(each, qos_mode=modes[name], qos_name=name) for each in sites for name in names]


def record(run_dir: RunDir, sites: list[Site]) -> Preemption | None:
    """Write what these sites do with the run's jobs, and return it; None where it is not known.

    Which QOS a job gets that requests none, only the job knows.
    """
    if not sites or (sites[0].preempt_type == "qos" and sites[0].qos_name is None):
        return None
    known = Preemption(any(site.preempt_mode == "CANCEL" for site in sites), sites[0].qos_name)
    records.write(run_dir.path / "preemption.json", known)
    return known


def recorded(run_dir: RunDir) -> Preemption | None:
    """Return what is recorded of the sites of a run; None where nothing is."""
    return records.read(Preemption, run_dir.path / "preemption.json")


def of_job(run_dir: RunDir, requested: Slurm) -> Preemption | None:
    """Return what preemption does with this job; None without an answer.

    It is asked where submit did not know it, or the site gave the job another QOS than that.
    """
    known, own_qos = recorded(run_dir), os.environ.get("SLURM_JOB_QOS")
    if known is not None and (known.qos is None or own_qos in (None, known.qos)):
        return known
    return record(run_dir, query(replace(requested, qos=own_qos or requested.qos)))
