"""The parts of the test cluster, and the configuration files that describe them to Slurm.

Pure: from a `Site` to text. `network` and `cluster` make it real.
"""

import hashlib
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import NamedTuple

CONTROLLER = "ctl"
# Private, and seen by the nodes only.
DATA_SUBNET = IPv6Network("fd6b:6974:7465:7374::/64")
# A job that is requeued waits until its credential has expired and one second more; 120 s is
# Slurm's default. Source: slurm.conf(5), AuthInfo; src/slurmctld/job_mgr.c.
CRED_EXPIRE_S = 5
KILL_WAIT_S = 10
SLURMD_TIMEOUT_S = 15
GRACE_TIME_S = 30


class Preemption(NamedTuple):
    """What happens to a job in the partition batch that is preempted."""

    mode: str = "REQUEUE"
    grace_s: int = GRACE_TIME_S


USUAL_PREEMPTION = Preemption()


@dataclass(frozen=True)
class Site:
    """One cluster: where its files lie, its machines, its addresses and its settings.

    `trap_node` is the node that knows itself as 127.0.1.1, as the /etc/hosts of a stock Debian
    makes it; all the others see its real address. The nodes find the names of `ipv6_nodes` in the
    data network, which has IPv6 only; Slurm itself uses IPv4 addresses. `subnet` and `first_job_id`
    are chosen when the cluster starts. `prefix` is the folder with Slurm's programs and plugins,
    None where they lie in the system's.
    """

    root: Path
    num_nodes: int
    cpus: int
    proctrack: str
    extra_conf: str = ""
    trap_node: str = "n1"
    subnet: IPv4Network = field(default_factory=lambda: IPv4Network("10.192.0.0/24"))
    first_job_id: int = 1
    prefix: Path | None = None
    ipv6_nodes: tuple[str, ...] = ()
    preemption: Preemption = USUAL_PREEMPTION

    @property
    def tag(self) -> str:
        return tag_of(self.root)

    @property
    def nodes(self) -> list[str]:
        return [f"n{i}" for i in range(1, self.num_nodes + 1)]

    @property
    def clients(self) -> list[str]:
        return self.nodes

    @property
    def machines(self) -> list[str]:
        return [CONTROLLER, *self.clients]

    @property
    def conf_dir(self) -> Path:
        return self.root / "etc"

    @property
    def log_dir(self) -> Path:
        return self.root / "log"

    @property
    def work_dir(self) -> Path:
        """The folder in which the tests' commands run and jobs write their output."""
        return self.root / "work"

    def pid_file(self, machine: str) -> Path:
        return self.root / f"run/{machine}.pid"

    def netns(self, machine: str) -> str:
        return f"{self.tag}-{machine}"

    def address(self, machine: str) -> str:
        index = 254 if machine == CONTROLLER else self.clients.index(machine) + 1
        return str(self.subnet[index])

    def data_address(self, node: str) -> str:
        return str(DATA_SUBNET[self.clients.index(node) + 1])

    def host_name(self, machine: str) -> str:
        """The name that a machine has for itself, and other hosts for it."""
        return machine

    def settings(self) -> dict[str, object]:
        root = self.root
        return {
            "ClusterName": self.tag,
            "SlurmctldHost": f"{CONTROLLER}({self.address(CONTROLLER)})",
            "SlurmUser": "root",
            "SlurmdUser": "root",
            "AuthType": "auth/munge",
            "AuthInfo": f"socket={root}/munge/socket,cred_expire={CRED_EXPIRE_S}",
            "StateSaveLocation": root / "state",
            "SlurmdSpoolDir": root / "spool/%n",
            "SlurmctldPidFile": self.pid_file(CONTROLLER),
            "SlurmdPidFile": self.pid_file("%n"),
            "SlurmctldLogFile": self.log_dir / "slurmctld.log",
            "SlurmdLogFile": self.log_dir / "slurmd.%n.log",
            "FirstJobId": self.first_job_id,
            "AccountingStorageType": "accounting_storage/none",
            "JobAcctGatherType": "jobacct_gather/none",
            "MailProg": "/bin/true",
            "MpiDefault": "none",
            "PropagateResourceLimits": "NONE",
            "ProctrackType": f"proctrack/{self.proctrack}",
            "TaskPlugin": "task/none",
            # More CPUs and memory than the machine has: no test computes for long.
            "SlurmdParameters": "config_overrides",
            "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_Core",
            "ReturnToService": 2,
            "SlurmdTimeout": SLURMD_TIMEOUT_S,
            "KillWait": KILL_WAIT_S,
            "MinJobAge": 3600,  # a test reads a job's end after its reference run, minutes later
            "SchedulerType": "sched/backfill",
            "SchedulerParameters": "sched_interval=1,batch_sched_delay=0,bf_interval=1",
            "JobRequeue": 1,
            "PreemptType": "preempt/partition_prio",
            "PreemptMode": "REQUEUE",
        }

    def node_line(self, node: str) -> str:
        size = f"CPUs={self.cpus} RealMemory=64000 State=UNKNOWN"
        return f"NodeName={node} NodeAddr={self.address(node)} {size}"

    def partition_lines(self) -> list[str]:
        low = "Nodes=ALL PriorityTier=1"
        mode, grace_s = self.preemption
        return [
            f"PartitionName=batch Default=YES {low} PreemptMode={mode} GraceTime={grace_s}",
            f"PartitionName=nograce {low} PreemptMode=REQUEUE GraceTime=0",
            "PartitionName=urgent Nodes=ALL PriorityTier=10 PreemptMode=OFF",
        ]


def tag_of(root: Path) -> str:
    """Returns the prefix of all names that the cluster at `root` has on this machine.

    It follows from the path alone, so that anything a killed process left behind is found again.
    """
    return "sl" + hashlib.sha256(str(root).encode()).hexdigest()[:6]


def hosts(site: Site, machine: str) -> str:
    lines = ["127.0.0.1 localhost", "::1 localhost"]
    for name in site.machines:
        address = site.address(name)
        if name in site.ipv6_nodes and machine != CONTROLLER:
            address = site.data_address(name)
        elif name == machine == site.trap_node:
            address = "127.0.1.1"
        lines.append(f"{address} {site.host_name(name)}")
    return "\n".join(lines) + "\n"


def slurm_conf(site: Site) -> str:
    """Returns slurm.conf; a setting in `extra_conf` replaces the one here of the same name."""
    extra = [line.strip() for line in site.extra_conf.splitlines() if line.strip()]
    replaced = {_setting_name(line) for line in extra}
    base = [f"{key}={value}" for key, value in site.settings().items()]
    if site.prefix:
        base.append(f"PluginDir={site.prefix}/lib/slurm")
    base += [site.node_line(node) for node in site.nodes] + site.partition_lines()
    return "\n".join([line for line in base if _setting_name(line) not in replaced] + extra) + "\n"


def cgroup_conf(version: int) -> str:
    """Returns cgroup.conf: processes are tracked, with TaskPlugin=task/cgroup memory is limited."""
    lines = [f"CgroupPlugin=cgroup/v{version}", "ConstrainRAMSpace=yes"]
    if version == 2:
        # The node's own cgroup tree has no systemd that Slurm could call.
        lines.append("IgnoreSystemd=yes")
    return "\n".join(lines) + "\n"


def munged_argv(site: Site) -> list[str]:
    folder = site.root / "munge"
    files = {
        "key-file": folder / "key",
        "socket": folder / "socket",
        "pid-file": folder / "pid",
        "log-file": site.log_dir / "munged.log",
        "seed-file": folder / "seed",
    }
    # --force: the root may lie in a folder that others can write to, such as /tmp.
    options = [f"--{option}={path}" for option, path in files.items()]
    return ["munged", "--force", "--num-threads=2", *options]


def _setting_name(line: str) -> str:
    """`Key` of `Key=value`; nodes and partitions go by `PartitionName=batch`."""
    first_word = line.split()[0]
    key = first_word.partition("=")[0]
    return (first_word if key in ("NodeName", "PartitionName") else key).lower()
