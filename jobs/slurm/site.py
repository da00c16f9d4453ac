"""Reads from Slurm what a site does with a job: limits, preemption, requeue, KillWait.

Pure parsers of `scontrol show config` and `scontrol show partition`; `query` runs each once, at
submit. If Slurm does not answer, the site is unknown and nothing is refused. Standard library only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..console import user_name
from ..spec import Slurm
from . import client, duration, pending
from .pending import SharedLimits

# Slurm's own defaults. Source: slurm.conf(5).
KILL_WAIT_S = 30
SLURMD_PORT = 6818
CRED_EXPIRE_S = 120  # AuthInfo, cred_expire
_PAIR = re.compile(r"(\w+)=(\S+)")
_UNLIMITED = ("UNLIMITED", "INFINITE", "NONE", "N/A", "(null)", "")


@dataclass(frozen=True)
class Config:
    """The settings of `scontrol show config` that matter to a run."""

    version: str
    preempt_type: str  # none, partition_prio or qos
    preempt_mode: str  # the cluster's; partitions and QOS may have their own
    is_requeued: bool  # JobRequeue: the default for jobs without --requeue or --no-requeue
    kill_wait_s: int  # from SIGTERM to SIGKILL
    over_time_limit: str  # how far a job may exceed its limit
    has_accounting: bool
    sends_user_signal: bool  # a preempted job gets its own --signal, not SIGTERM
    chooses_partition: bool  # a submit plugin may choose another partition than the job's
    max_batch_requeue: int = 5  # failed launches of a job before it is held
    slurmd_port: int = SLURMD_PORT
    requeue_delay_s: int = CRED_EXPIRE_S + 1  # a requeued job waits so long before it may start
    has_expedited: bool = False  # jobs may ask for an expedited requeue (Slurm 25.11)
    requeued_codes: frozenset[int] = frozenset()  # exit codes of jobs that are requeued or held
    cluster: str = ""
    hides_jobs: bool = False  # PrivateData=jobs: users see their own jobs only
    slurm_uid: int = 0  # of SlurmUser, who sees all jobs, as root does
    max_array_size: int | None = None  # the numbers of an array's tasks are below it


@dataclass(frozen=True)
class Partition:
    """The settings of `scontrol show partition` that matter to a run; None is no limit."""

    name: str
    is_default: bool
    state: str
    max_time_s: int | None
    max_nodes: int | None
    min_nodes: int
    grace_time_s: int
    preempt_mode: str
    alloc_nodes: str  # nodes from which jobs may be submitted
    qos: str  # of the partition itself; empty for none
    nodes: int = 0  # in any state
    allow_accounts: tuple[str, ...] = ()  # only jobs of these; () for all
    allow_qos: tuple[str, ...] = ()


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

    @property
    def summary(self) -> str:
        """The site in one line, for a dry run."""
        config, mode = self.config, self.preempt_mode
        signal = "its --signal" if config.sends_user_signal else "SIGTERM"
        preempted = f"preempted jobs get {signal}, {self.grace_time_s} s and {mode}"
        parts = [
            f"Slurm {config.version}, partition {self.partition.name}",
            "no preemption" if mode == "OFF" else preempted,
            f"KillWait {config.kill_wait_s} s",
        ]
        if mode == "REQUEUE":
            parts.append(f"a requeued job waits {config.requeue_delay_s} s")
        if config.over_time_limit:
            parts.append(f"jobs may exceed their limit by {config.over_time_limit}")
        if not config.has_accounting:
            parts.append("no sacct (the kit does not need it)")
        return "; ".join(parts)


def parse_config(text: str) -> Config | None:
    """Return the configuration in the output of `scontrol show config`; None if it has none."""
    lines = (line.partition("=") for line in text.splitlines())
    values = {name.strip(): value.strip() for name, equals, value in lines if equals}
    if "PreemptType" not in values:
        return None
    # Slurm 23.02 introduced PreemptParameters; before, SlurmctldParameters had a longer name of it.
    parameters = values.get("PreemptParameters", "") + values.get("SlurmctldParameters", "")
    over = values.get("OverTimeLimit", "0 min")
    return Config(
        version=values.get("SLURM_VERSION", ""),
        preempt_type=values["PreemptType"].removeprefix("preempt/"),
        preempt_mode=_mode(values.get("PreemptMode", "OFF")),
        is_requeued=values.get("JobRequeue", "1") != "0",
        kill_wait_s=_number(values.get("KillWait", "")),
        over_time_limit="" if over.startswith("0") else over,
        # Slurm 24.11 prints (null), older versions accounting_storage/none.
        has_accounting=values.get("AccountingStorageType", "").rpartition("/")[2]
        not in (*_UNLIMITED, "none"),
        sends_user_signal="send_user_signal" in parameters,
        chooses_partition=values.get("JobSubmitPlugins", "(null)") not in _UNLIMITED,
        max_batch_requeue=_number(values.get("MaxBatchRequeue", "5")),
        slurmd_port=_number(values.get("SlurmdPort", "")) or SLURMD_PORT,
        requeue_delay_s=_requeue_delay_s(values),
        requeued_codes=_codes(values.get("RequeueExit", ""))
        | _codes(values.get("RequeueExitHold", "")),
        has_expedited="enable_expedited_requeue" in values.get("SlurmctldParameters", ""),
        cluster=values.get("ClusterName", ""),
        hides_jobs="jobs" in values.get("PrivateData", "").split(","),
        slurm_uid=_number(values.get("SlurmUser", "").rpartition("(")[2]),
        max_array_size=_number(values.get("MaxArraySize", "")) or None,
    )


def _codes(text: str) -> frozenset[int]:
    """Return the numbers of `1,5-9`; none for `(null)`. Source: slurm.conf(5), RequeueExit."""
    ranges = re.findall(r"(\d+)(?:-(\d+))?", text)
    return frozenset(
        code for first, last in ranges for code in range(int(first), int(last or first) + 1)
    )


def _requeue_delay_s(values: Mapping[str, str]) -> int:
    """Return how long a requeued job waits: requeue_delay (Slurm 25.11), else cred_expire, and 1 s.

    Source: slurm.conf(5), SchedulerParameters, AuthInfo; slurmctld/job_mgr.c, batch_requeue_fini.
    """
    for setting, name in (("SchedulerParameters", "requeue_delay"), ("AuthInfo", "cred_expire")):
        value = re.search(rf"\b{name}=(\d+)", values.get(setting, ""))
        if value is not None:
            return int(value[1]) + 1
    return CRED_EXPIRE_S + 1


def parse_partitions(text: str) -> list[Partition]:
    """Return the partitions in the output of `scontrol show partition`."""
    blocks = re.split(r"^(?=PartitionName=)", text, flags=re.MULTILINE)
    pairs = [dict(_PAIR.findall(block)) for block in blocks]
    return [_partition(values) for values in pairs if "PartitionName" in values]


def _partition(values: Mapping[str, str]) -> Partition:
    max_time, max_nodes = values.get("MaxTime", ""), values.get("MaxNodes", "")
    return Partition(
        name=values["PartitionName"],
        is_default=values.get("Default") == "YES",
        state=values.get("State", "UP"),
        max_time_s=None if max_time in _UNLIMITED else duration.parse_or_zero(max_time),
        max_nodes=None if max_nodes in _UNLIMITED else _number(max_nodes),
        min_nodes=_number(values.get("MinNodes", "")),
        grace_time_s=_number(values.get("GraceTime", "")),
        preempt_mode=_mode(values.get("PreemptMode", "OFF")),
        alloc_nodes=values.get("AllocNodes", "ALL"),
        qos="" if (qos := values.get("QoS", "")) in _UNLIMITED else qos,
        nodes=_number(values.get("TotalNodes", "")),
        allow_accounts=_allowed_names(values.get("AllowAccounts", "ALL")),
        allow_qos=_allowed_names(values.get("AllowQos", "ALL")),
    )


def _allowed_names(text: str) -> tuple[str, ...]:
    """Return the names in a list such as AllowAccounts, in lower case; () where all are allowed.

    Slurm compares accounts and QOS without their case, but partitions with it (measured: 22.05).
    """
    return () if text in ("ALL", *_UNLIMITED) else tuple(text.lower().split(","))


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


def all_partitions() -> list[Partition]:
    """Return every partition of the cluster, hidden ones, too; empty if Slurm does not answer."""
    return parse_partitions(_output(["scontrol", "--all", "show", "partition"]))


def associations(user: str) -> list[tuple[str, tuple[str, ...]]]:
    """Return the user's accounts, each with its QOS; empty without an accounting database."""
    argv = ["sacctmgr", "--noheader", "--parsable2", "show", "associations", "where"]
    text = _output([*argv, f"user={user}", "format=Account,QOS"])
    rows = [line.split("|") for line in text.splitlines()]
    return [(row[0], tuple(filter(None, row[1].split(",")))) for row in rows if len(row) == 2]


def sees_all_jobs(user: str) -> bool:
    """Return whether Slurm shows a user every job although PrivateData hides them from others.

    False without an accounting database. Source: slurm.conf(5), PrivateData; sacctmgr(1),
    AdminLevel.
    """
    argv = ["sacctmgr", "--noheader", "--parsable2", "show", "user", user, "format=AdminLevel"]
    return _output(argv).strip() in ("Operator", "Administrator")


def exceeds_alone(job: client.Job) -> bool:
    """Return whether a waiting job never starts, as it exceeds a limit without any other job.

    The limit is one of several jobs, or that of a partition's nodes.
    """
    if job.state != "PENDING":
        return False
    if pending.is_node_limit(job.reason):
        return _exceeds_nodes(pending.nodes_in(job.tres), job.partition)
    if not pending.is_shared(job.reason):
        return False
    limits = shared_limits(user_name(job.uid), job.account, job.qos, job.partition)
    return pending.exceeds_alone(
        job.reason, job.tres, duration.parse_or_zero(job.time_limit), limits
    )


def _exceeds_nodes(nodes: int, partitions: str) -> bool:
    """Return whether each of these partitions allows fewer or more nodes; False if no answer."""
    chosen = [each for each in all_partitions() if each.name in partitions.split(",")]
    return bool(chosen and nodes) and not any(
        each.min_nodes <= nodes <= min(each.nodes, each.max_nodes or each.nodes) for each in chosen
    )


def shared_limits(user: str, account: str, qos: str, partitions: str = "") -> SharedLimits:
    """Return what jobs of an account and those above it, of a QOS and of a user may use together.

    partitions: of the job; each may have a QOS, too. Empty without an accounting database. Source:
    sacctmgr(1), GrpTRES and the like; slurm.conf(5), QOS of a partition.
    """
    of_accounts = list(_of_accounts(user, account))
    names = [qos, *(each.qos for each in all_partitions() if each.name in partitions.split(","))]
    columns = "format=GrpTRES,MaxTRESPU,MaxTRESPA,GrpTRESMins,GrpTRESRunMins,MaxTRESRunMinsPU,"
    columns += "MaxTRESRunMinsPA,GrpJobs,MaxJobsPU,MaxJobsPA,GrpWall"
    listed = f"name={','.join(filter(None, names))}"
    of_qos = [row for row in _rows(["qos", listed, columns]) if len(row) == 11]

    def both(first: slice, second: slice) -> tuple[str, ...]:
        cells = [cell for row in of_accounts for cell in row[first]]
        return tuple(filter(None, [*cells, *(cell for row in of_qos for cell in row[second])]))

    return SharedLimits(
        tres=both(slice(0, 1), slice(0, 3)),
        minutes=both(slice(1, 3), slice(3, 7)),
        jobs=both(slice(3, 5), slice(7, 10)),
        wall=both(slice(5, 6), slice(10, 11)),
    )


def _of_accounts(user: str, account: str) -> Iterator[list[str]]:
    """Yield GrpTRES, GrpTRESMins, GrpTRESRunMins, GrpJobs, MaxJobs and GrpWall of associations.

    Of the user, of the account and of each account above it: the last is root.
    """
    columns = "format=User,ParentName,GrpTRES,GrpTRESMins,GrpTRESRunMins,GrpJobs,MaxJobs,GrpWall"
    seen: set[str] = set()
    while account and account not in seen:
        seen.add(account)
        rows = _rows(["associations", "where", f"account={account}", columns])
        own = [row for row in rows if len(row) == 8 and row[0] in ("", user)]
        yield from (row[2:] for row in own)
        account, user = next((row[1] for row in own if not row[0]), ""), ""


def _rows(columns: Sequence[str]) -> list[list[str]]:
    """Return the cells of what sacctmgr shows."""
    text = _output(["sacctmgr", "--noheader", "--parsable2", "show", *columns])
    return [line.split("|") for line in text.splitlines()]


def features(partitions: str | None) -> set[str] | None:
    """Return the features of the nodes of partitions, or of all nodes; None without an answer."""
    where = [f"--partition={partitions}"] if partitions else []
    # Available and active features. Source: sinfo(1), %f, %b.
    text = _output(["sinfo", "--all", "--noheader", *where, "--format=%f,%b"])
    return set(re.split(r"[,\s]+", text.strip())) - {"(null)", ""} if text.strip() else None


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
