"""What this Slurm does with a job in its partition and QOS: limits, and preemption."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ... import records
from ...console import user_name
from ...rundir import RunDir
from ...slurm import duration
from ...slurm.site import number, settings, show_accounting, show_partitions
from ...spec import Slurm

_PAIR = re.compile(r"(\w+)=(\S+)")
_UNLIMITED = ("UNLIMITED", "INFINITE", "NONE", "N/A", "(null)", "")


@dataclass(frozen=True)
class Preemption:
    """preemption.json: whether Slurm cancels the run's jobs where it preempts them.

    qos: the one that decides it, where PreemptType is qos.
    """

    cancels: bool
    qos: str | None = None


@dataclass(frozen=True)
class Partition:
    """The settings of `scontrol show partition` that matter to a run; None is no limit."""

    name: str
    is_default: bool
    max_time_s: int | None
    grace_time_s: int
    preempt_mode: str
    nodes: int = 0  # in any state


@dataclass(frozen=True)
class Site:
    """A cluster for a job in one of its partitions. settings: of `scontrol show config`."""

    settings: Mapping[str, str]
    partition: Partition
    # PreemptMode (None: the cluster's) and GraceTime of the job's QOS, if PreemptType is qos.
    qos: tuple[str | None, int] | None = None
    qos_name: str | None = None  # of that QOS

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
            return (self.qos and self.qos[0]) or mode_of(self.settings.get("PreemptMode", "OFF"))
        return "OFF"

    @property
    def preemption_s(self) -> int | None:
        """Seconds from the warning of a preemption to SIGKILL; None where no job is ended so."""
        if self.preempt_mode not in ("CANCEL", "REQUEUE"):
            return None
        of_qos = 0 if self.qos is None else self.qos[1]
        grace_s = of_qos if self.preempt_type == "qos" else self.partition.grace_time_s
        return grace_s + number(self.settings.get("KillWait", ""))


def mode_of(text: str) -> str:
    """Return REQUEUE of `GANG,REQUEUE`: Slurm lists these flags before the mode.

    Source: slurm_protocol_defs.c, preempt_mode_string (PRIORITY: since 25.05).
    """
    flags = ("GANG", "WITHIN", "PRIORITY")
    return next((mode for mode in text.upper().split(",") if mode not in flags), "OFF")


def parse_partitions(text: str) -> list[Partition]:
    """Return the partitions in the output of `scontrol show partition`."""
    blocks = re.split(r"^(?=PartitionName=)", text, flags=re.MULTILINE)
    pairs = [dict(_PAIR.findall(block)) for block in blocks]
    return [_partition(values) for values in pairs if "PartitionName" in values]


def _partition(values: Mapping[str, str]) -> Partition:
    max_time = values.get("MaxTime", "")
    return Partition(
        name=values["PartitionName"],
        is_default=values.get("Default") == "YES",
        max_time_s=None if max_time in _UNLIMITED else duration.parse_or_zero(max_time),
        grace_time_s=number(values.get("GraceTime", "")),
        preempt_mode=mode_of(values.get("PreemptMode", "OFF")),
        nodes=number(values.get("TotalNodes", "")),
    )


def parse_qos(text: str) -> tuple[str | None, int] | None:
    """Return PreemptMode (None: the cluster's) and GraceTime (seconds) of a QOS.

    text: sacctmgr's `PreemptMode|GraceTime`; None where it has no such line.
    """
    line = next((line for line in text.splitlines() if "|" in line), "")
    mode, bar, grace = line.strip().partition("|")
    if not bar:
        return None
    is_clusters = mode.lower() in ("", "cluster")
    return None if is_clusters else mode_of(mode), duration.parse_or_zero(grace)


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
    if not sites or sites[0].preempt_type != "qos":
        return sites
    wanted = requested.qos or default_qos(user_name(os.getuid()), requested.account)
    columns, names = "format=PreemptMode,GraceTime", wanted.lower().split(",")
    found = [(parse_qos(show_accounting("qos", f"name={name}", columns)), name) for name in names]
    return [replace(each, qos=qos, qos_name=name) for each in sites for qos, name in found]


def default_qos(user: str, account: str | None) -> str:
    """Return the QOS of a user's jobs that request none: the association's, else Slurm's.

    A submit plugin of the site may choose another; a job knows its own (SLURM_JOB_QOS). Source:
    sacctmgr(1), DefaultQOS; slurmctld, acct_policy: "normal".
    """
    columns = "format=DefaultAccount,Account,DefaultQOS"
    text = show_accounting("user", user, "withassoc", columns)
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == 2]
    names = [qos for default, own, qos in rows if own == (account or default).lower() and qos]
    return names[0] if names else "normal"


def record(run_dir: RunDir, sites: list[Site]) -> Preemption | None:
    """Write what these sites do with the run's jobs, and return it; None without an answer."""
    if not sites:
        return None
    known = Preemption(any(site.preempt_mode == "CANCEL" for site in sites), sites[0].qos_name)
    records.write(run_dir.path / "preemption.json", known)
    return known


def recorded(run_dir: RunDir) -> Preemption | None:
    """Return what is recorded of the sites of a run; None where nothing is."""
    return records.read(Preemption, run_dir.path / "preemption.json")


def of_job(run_dir: RunDir, requested: Slurm) -> Preemption | None:
    """Return what preemption does with this job; None without an answer.

    It is asked where submit got no answer, or the site gave the job another QOS than that.
    """
    known, own_qos = recorded(run_dir), os.environ.get("SLURM_JOB_QOS")
    if known is not None and (known.qos is None or own_qos in (None, known.qos)):
        return known
    return record(run_dir, query(replace(requested, qos=own_qos or requested.qos)))
