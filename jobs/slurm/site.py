"""What a site's Slurm does with a job, told at submit and not found out at night.

The parsers are pure, of `scontrol show config` and `scontrol show partition`; `look` makes one
call of each. Where Slurm does not answer nothing is known, and nothing is refused for it.
Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jobs.slurm import client, duration
from jobs.spec import Slurm

# Slurm's own defaults. Source: slurm.conf(5).
KILL_WAIT_S = 30
SLURMD_PORT = 6818
_PAIR = re.compile(r"(\w+)=(\S+)")
_UNLIMITED = ("UNLIMITED", "INFINITE", "NONE", "N/A", "(null)", "")


@dataclass(frozen=True)
class Config:
    """What counts of `scontrol show config`."""

    version: str
    preempt_type: str  # none, partition_prio or qos
    preempt_mode: str  # the cluster's; partitions and QOS may have their own
    is_requeued: bool  # JobRequeue: of jobs that do not say what they want
    kill_wait_s: int  # from SIGTERM to SIGKILL
    over_time_limit: str  # what a job may exceed its limit by
    has_accounting: bool
    sends_user_signal: bool  # a preempted job gets its own --signal, not SIGTERM
    chooses_partition: bool  # a submit plugin may put a job elsewhere than it asked for
    max_batch_requeue: int = 5  # failed launches of a job before it is held
    slurmd_port: int = SLURMD_PORT


@dataclass(frozen=True)
class Partition:
    """What counts of `scontrol show partition`; None is no limit."""

    name: str
    is_default: bool
    state: str
    max_time_s: int | None
    max_nodes: int | None
    min_nodes: int
    grace_time_s: int
    preempt_mode: str
    alloc_nodes: str  # where jobs may be submitted
    has_own_qos: bool
    nodes: int = 0  # of whatever state


@dataclass(frozen=True)
class Site:
    """A cluster as a job of one partition meets it."""

    config: Config
    partition: Partition
    # Of the job's QOS, where QOS decide who is preempted: its mode and its grace.
    qos: tuple[str, int] | None = None

    @property
    def preempt_mode(self) -> str:
        """What becomes of a preempted job. Source: slurm.conf(5), PreemptType, PreemptMode."""
        if self.config.preempt_type == "partition_prio":
            return self.partition.preempt_mode
        if self.config.preempt_type == "qos":
            return self.config.preempt_mode if self.qos is None else self.qos[0]
        return "OFF"

    @property
    def grace_time_s(self) -> int:
        """Seconds from the warning to the end of a preempted job, before KillWait."""
        if self.config.preempt_type == "qos":
            return 0 if self.qos is None else self.qos[1]
        return self.partition.grace_time_s

    def in_words(self) -> str:
        """One line, for a dry run."""
        config, mode = self.config, self.preempt_mode
        told = "its --signal" if config.sends_user_signal else "SIGTERM"
        preempted = f"preempted jobs get {told}, {self.grace_time_s} s and {mode}"
        parts = [
            f"Slurm {config.version}, partition {self.partition.name}",
            "no preemption" if mode == "OFF" else preempted,
            f"KillWait {config.kill_wait_s} s",
        ]
        if config.over_time_limit:
            parts.append(f"jobs may exceed their limit by {config.over_time_limit}")
        if not config.has_accounting:
            parts.append("no sacct (nothing is lost by it)")
        return "; ".join(parts)


def parse_config(text: str) -> Config | None:
    """The configuration in the text of `scontrol show config`; None if there is none."""
    lines = (line.partition("=") for line in text.splitlines())
    found = {name.strip(): value.strip() for name, equals, value in lines if equals}
    if "PreemptType" not in found:
        return None
    # PreemptParameters is of Slurm 23.02; before, SlurmctldParameters had it under a longer name.
    parameters = found.get("PreemptParameters", "") + found.get("SlurmctldParameters", "")
    over = found.get("OverTimeLimit", "0 min")
    return Config(
        version=found.get("SLURM_VERSION", ""),
        preempt_type=found["PreemptType"].removeprefix("preempt/"),
        preempt_mode=_mode(found.get("PreemptMode", "OFF")),
        is_requeued=found.get("JobRequeue", "1") != "0",
        kill_wait_s=_number(found.get("KillWait", "")),
        over_time_limit="" if over.startswith("0") else over,
        # Slurm 24.11 says (null), before it said accounting_storage/none.
        has_accounting=found.get("AccountingStorageType", "").rpartition("/")[2]
        not in (*_UNLIMITED, "none"),
        sends_user_signal="send_user_signal" in parameters,
        chooses_partition=found.get("JobSubmitPlugins", "(null)") not in _UNLIMITED,
        max_batch_requeue=_number(found.get("MaxBatchRequeue", "5")),
        slurmd_port=_number(found.get("SlurmdPort", "")) or SLURMD_PORT,
    )


def parse_partitions(text: str) -> list[Partition]:
    """The partitions in the text of `scontrol show partition`."""
    blocks = re.split(r"^(?=PartitionName=)", text, flags=re.MULTILINE)
    return [_partition(dict(_PAIR.findall(block))) for block in blocks if block.strip()]


def _partition(found: Mapping[str, str]) -> Partition:
    max_time, max_nodes = found.get("MaxTime", ""), found.get("MaxNodes", "")
    return Partition(
        name=found["PartitionName"],
        is_default=found.get("Default") == "YES",
        state=found.get("State", "UP"),
        max_time_s=None if max_time in _UNLIMITED else duration.parse_or_zero(max_time),
        max_nodes=None if max_nodes in _UNLIMITED else _number(max_nodes),
        min_nodes=_number(found.get("MinNodes", "")),
        grace_time_s=_number(found.get("GraceTime", "")),
        preempt_mode=_mode(found.get("PreemptMode", "OFF")),
        alloc_nodes=found.get("AllocNodes", "ALL"),
        has_own_qos=found.get("QoS", "N/A") not in _UNLIMITED,
        nodes=_number(found.get("TotalNodes", "")),
    )


def _mode(text: str) -> str:
    """REQUEUE of `GANG,REQUEUE`, which is how Slurm writes the two together."""
    return next((mode for mode in text.upper().split(",") if mode != "GANG"), "OFF")


def _number(text: str) -> int:
    digits = re.match(r"\d+", text)
    return int(digits[0]) if digits else 0


def parse_qos(text: str) -> tuple[str, int] | None:
    """Mode and grace of a QOS, from sacctmgr's `PreemptMode|GraceTime`; None for the cluster's."""
    mode, bar, grace = text.strip().partition("\n")[0].partition("|")
    if not bar or mode.lower() in ("", "cluster"):
        return None
    return _mode(mode), duration.parse_or_zero(grace)


def ask_config() -> Config | None:
    """The cluster's configuration; None if Slurm does not say."""
    return parse_config(_said(["scontrol", "show", "config"]))


def look(wished: Slurm, config: Config | None = None) -> list[Site]:
    """The cluster as each of the partitions that were asked for; empty if Slurm does not say.

    `config`: if that is known already.
    """
    config = config or ask_config()
    if config is None:
        return []
    names = (wished.partition or "").split(",")
    one = [wished.partition] if wished.partition and len(names) == 1 else []
    found = parse_partitions(_said(["scontrol", "--all", "show", "partition", *one]))
    asked = [each for each in found if each.name in names]
    if not wished.partition:
        asked = [each for each in found if each.is_default]
    qos = None
    if config.preempt_type == "qos" and wished.qos:
        columns = ("show", "qos", f"name={wished.qos}", "format=PreemptMode,GraceTime")
        qos = parse_qos(_said(["sacctmgr", "--noheader", "--parsable2", *columns]))
    return [Site(config, each, qos) for each in asked]


def _said(argv: Sequence[str]) -> str:
    answer = client.call(argv)
    return answer.stdout if answer is not None and answer.returncode == 0 else ""
