"""Reads from Slurm what a site does with a job: limits, preemption, requeue, KillWait.

Pure parsers of `scontrol show config` and `scontrol show partition`; `query` runs each once, at
submit. If Slurm does not answer, the site is unknown and nothing is refused. Standard library only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..console import user_name
from ..spec import Slurm
from . import client, duration

# Slurm's own defaults. Source: slurm.conf(5).
KILL_WAIT_S = 30
SLURMD_PORT = 6818
_PAIR = re.compile(r"(\w+)=(\S+)")
_UNLIMITED = ("UNLIMITED", "INFINITE", "NONE", "N/A", "(null)", "")


@dataclass(frozen=True)
class Config:
    """The settings of `scontrol show config` that matter to a run."""

    version: str
    preempt_type: str  # none, partition_prio or qos
    preempt_mode: str  # the cluster's; partitions and QOS may have their own
    kill_wait_s: int  # from SIGTERM to SIGKILL
    max_batch_requeue: int = 5  # failed launches of a job before it is held
    slurmd_port: int = SLURMD_PORT
    requeued_codes: frozenset[int] = frozenset()  # exit codes of jobs that are requeued or held
    cluster: str = ""


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
    """A cluster for a job in one of its partitions."""

    config: Config
    partition: Partition
    # PreemptMode (None: the cluster's) and GraceTime of the job's QOS, if PreemptType is qos.
    qos: tuple[str | None, int] | None = None
    qos_name: str | None = None  # of that QOS

    @property
    def preempt_mode(self) -> str:
        """What Slurm does to a preempted job. Source: slurm.conf(5), PreemptType, PreemptMode."""
        if self.config.preempt_type == "partition_prio":
            return self.partition.preempt_mode
        if self.config.preempt_type == "qos":
            return (self.qos and self.qos[0]) or self.config.preempt_mode
        return "OFF"

    @property
    def grace_time_s(self) -> int:
        """Seconds from the warning to the end of a preempted job, before KillWait."""
        if self.config.preempt_type == "qos":
            return 0 if self.qos is None else self.qos[1]
        return self.partition.grace_time_s

    @property
    def preemption_s(self) -> int | None:
        """Seconds from the warning of a preemption to SIGKILL; None where no job is ended so."""
        is_ended = self.preempt_mode in ("CANCEL", "REQUEUE")
        return self.grace_time_s + self.config.kill_wait_s if is_ended else None


def parse_config(text: str) -> Config | None:
    """Return the configuration in the output of `scontrol show config`; None if it has none."""
    lines = (line.partition("=") for line in text.splitlines())
    values = {name.strip(): value.strip() for name, equals, value in lines if equals}
    if "PreemptType" not in values:
        return None
    return Config(
        version=values.get("SLURM_VERSION", ""),
        preempt_type=values["PreemptType"].removeprefix("preempt/"),
        preempt_mode=_mode(values.get("PreemptMode", "OFF")),
        kill_wait_s=_number(values.get("KillWait", "")),
        max_batch_requeue=_number(values.get("MaxBatchRequeue", "5")),
        slurmd_port=_number(values.get("SlurmdPort", "")) or SLURMD_PORT,
        requeued_codes=_codes(values.get("RequeueExit", ""))
        | _codes(values.get("RequeueExitHold", "")),
        cluster=values.get("ClusterName", ""),
    )


def _codes(text: str) -> frozenset[int]:
    """Return the numbers of `1,5-9`; none for `(null)`. Source: slurm.conf(5), RequeueExit."""
    ranges = re.findall(r"(\d+)(?:-(\d+))?", text)
    return frozenset(
        code for first, last in ranges for code in range(int(first), int(last or first) + 1)
    )


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
        grace_time_s=_number(values.get("GraceTime", "")),
        preempt_mode=_mode(values.get("PreemptMode", "OFF")),
        nodes=_number(values.get("TotalNodes", "")),
    )


def _mode(text: str) -> str:
    """Return REQUEUE of `GANG,REQUEUE`: Slurm lists these flags before the mode.

    Source: slurm_protocol_defs.c, preempt_mode_string (PRIORITY: since 25.05).
    """
    flags = ("GANG", "WITHIN", "PRIORITY")
    return next((mode for mode in text.upper().split(",") if mode not in flags), "OFF")


def _number(text: str) -> int:
    digits = re.match(r"\d+", text)
    return int(digits[0]) if digits else 0


def parse_qos(text: str) -> tuple[str | None, int] | None:
    """Return PreemptMode (None: the cluster's) and GraceTime (seconds) of a QOS.

    text: sacctmgr's `PreemptMode|GraceTime`; None where it has no such line.
    """
    line = next((line for line in text.splitlines() if "|" in line), "")
    mode, bar, grace = line.strip().partition("|")
    if not bar:
        return None
    is_clusters = mode.lower() in ("", "cluster")
    return None if is_clusters else _mode(mode), duration.parse_or_zero(grace)


def query_config() -> Config | None:
    """Return the cluster's configuration; None if Slurm does not answer."""
    return parse_config(_output(["scontrol", "show", "config"]))


def query(requested: Slurm, config: Config | None = None) -> list[Site]:
    """Return one site for each requested partition; empty if Slurm does not answer.

    Where QOS decide on preemption, one for each partition and QOS: Slurm 24.11 takes a list of QOS.
    config: the cluster's configuration, if the caller has it.
    """
    config = config or query_config()
    if config is None:
        return []
    names = (requested.partition or "").split(",")
    one = [requested.partition] if requested.partition and len(names) == 1 else []
    partitions = parse_partitions(_output(["scontrol", "--all", "show", "partition", *one]))
    chosen = [each for each in partitions if each.name in names]
    if not requested.partition:
        chosen = [each for each in partitions if each.is_default]
    if config.preempt_type != "qos":
        return [Site(config, each) for each in chosen]
    wanted = requested.qos or default_qos(user_name(os.getuid()), requested.account)
    found_qos = [(_query_qos(name), name) for name in wanted.lower().split(",")]
    return [Site(config, each, *qos) for each in chosen for qos in found_qos]


def _query_qos(name: str) -> tuple[str | None, int] | None:
    columns = ("show", "qos", f"name={name}", "format=PreemptMode,GraceTime")
    return parse_qos(_output(["sacctmgr", "--noheader", "--parsable2", *columns]))


def default_qos(user: str, account: str | None) -> str:
    """Return the QOS of a user's jobs that request none: the association's, else Slurm's.

    A submit plugin of the site may choose another; a job knows its own (SLURM_JOB_QOS). Source:
    sacctmgr(1), DefaultQOS; slurmctld, acct_policy: "normal".
    """
    argv = ["sacctmgr", "--noheader", "--parsable2", "show", "user", user, "withassoc"]
    text = _output([*argv, "format=DefaultAccount,Account,DefaultQOS"])
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == 2]
    names = [qos for default, own, qos in rows if own == (account or default).lower() and qos]
    return names[0] if names else "normal"


def _output(argv: Sequence[str]) -> str:
    answer = client.call(argv)
    return answer.stdout if answer is not None and answer.returncode == 0 else ""
