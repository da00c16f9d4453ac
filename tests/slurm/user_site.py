"""The second shape of the test cluster: a site as its users have it.

KIT_TEST_SITE=1 chooses it. Pure, as `conf`: from a `UserSite` to text. `user_cluster` makes it
real.

What differs from the first shape: jobs and commands are those of an ordinary user and a second one,
from a login machine; slurmdbd keeps accounts and qualities of service (QOS), by which jobs are
preempted; memory is a resource; other users' jobs and processes are hidden; a node's host name is
not its name in Slurm; Slurm forgets an ended job soon; each machine has a /tmp of its own and the
shared files through a client with NFS's caches (file_client.c).
"""

from typing import NamedTuple

from .conf import CONTROLLER, Site

LOGIN = "login"
GROUP, GROUP_ID = "lab", 2000
# What a busy site may have; slurmctld looks once a minute for jobs to forget.
MIN_JOB_AGE_S = 5
DEF_MEM_PER_CPU_MIB = 1000


class User(NamedTuple):
    """An ordinary user; it exists on the machines of the cluster only."""

    name: str
    id: int


# The first one's runs are tested; the other one's jobs preempt them.
STUDENT = User("student", 2001)
OTHER = User("other", 2002)
USERS = (STUDENT, OTHER)
# QOS that a job gets by its partition: the tests choose a preemption by that in both shapes.
QOS_OF_PARTITION = {"batch": "scavenger", "nograce": "scavnow", "urgent": "high"}


class UserSite(Site):
    """A cluster with ordinary users, accounting and a file client on each machine."""

    @property
    def clients(self) -> list[str]:
        return [*self.nodes, LOGIN]

    def host_name(self, machine: str) -> str:
        """On some clouds DNS does not know a host's name in Slurm (NodeHostname, NodeAddr)."""
        return f"vm-{machine}" if machine in self.nodes else machine

    def settings(self) -> dict[str, object]:
        address = self.address(CONTROLLER)
        return super().settings() | {
            "AccountingStorageType": "accounting_storage/slurmdbd",
            "AccountingStorageHost": address,
            "AccountingStoragePass": self.root / "munge/socket",
            "AccountingStorageEnforce": "associations,limits,qos,safe",
            "JobAcctGatherType": "jobacct_gather/cgroup",
            "JobSubmitPlugins": "lua",
            "PrivateData": "jobs",
            "TaskPlugin": "task/cgroup",
            "SelectTypeParameters": "CR_Core_Memory",
            "DefMemPerCPU": DEF_MEM_PER_CPU_MIB,
            "MinJobAge": MIN_JOB_AGE_S,
            "PreemptType": "preempt/qos",
            "PriorityType": "priority/multifactor",
            "PriorityWeightQOS": 1000,
        }

    def node_line(self, node: str) -> str:
        return f"{super().node_line(node)} NodeHostname={self.host_name(node)}"

    def partition_lines(self) -> list[str]:
        rest = [f"PartitionName={name} Nodes=ALL" for name in ("nograce", "urgent")]
        return ["PartitionName=batch Default=YES Nodes=ALL", *rest]

    def home(self, user: User) -> str:
        return f"{self.work_dir}/home/{user.name}"


def passwd(site: UserSite, base: str) -> str:
    lines = [
        f"{name}:x:{number}:{GROUP_ID}::{site.home(User(name, number))}:/bin/bash"
        for name, number in USERS
    ]
    return base + "\n".join(lines) + "\n"


def group(base: str) -> str:
    return f"{base}{GROUP}:x:{GROUP_ID}:\n"


def slurmdbd_conf(site: UserSite) -> str:
    """Returns slurmdbd.conf; the database is in the controller's network, so ports are free."""
    settings = {
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={site.root}/munge/socket",
        "DbdHost": CONTROLLER,
        "DbdAddr": site.address(CONTROLLER),
        "SlurmUser": "root",
        "StorageType": "accounting_storage/mysql",
        "StorageHost": "127.0.0.1",
        "StorageUser": "slurm",
        "StorageLoc": "slurm",
        "LogFile": site.log_dir / "slurmdbd.log",
        "PidFile": site.pid_file("dbd"),
        "PrivateData": "jobs",
    }
    if site.prefix:
        settings["PluginDir"] = site.prefix / "lib/slurm"
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def job_submit_lua() -> str:
    """Returns job_submit.lua: the QOS by the partition, unless the user asks for one."""
    table = ", ".join(f'{partition}="{qos}"' for partition, qos in QOS_OF_PARTITION.items())
    return f"""\
local qos = {{{table}}}
function slurm_job_submit(job, partitions, uid)
  if job.qos == nil then job.qos = qos[job.partition or "batch"] end
  return slurm.SUCCESS
end
function slurm_job_modify(job, record, partitions, uid) return slurm.SUCCESS end
return slurm.SUCCESS
"""


def accounts(site: UserSite) -> str:
    """Returns the commands of sacctmgr that make users, an account and QOS."""
    allowed = ",".join(("normal", *QOS_OF_PARTITION.values()))
    lines = [
        f"add cluster {site.tag}",
        "add qos high Priority=1000",
        "add qos scavenger Priority=1 PreemptMode=requeue",
        "add qos scavnow Priority=1 PreemptMode=requeue GraceTime=0",
        "modify qos high set Preempt=scavenger,scavnow",
        f"add account {GROUP}",
        # The administrator, who has an account from the start.
        f"modify user root set QOS={allowed}",
    ]
    for user in USERS:
        lines += [
            f"add user {user.name} account={GROUP}",
            f"modify user {user.name} set QOS={allowed} DefaultQOS=normal",
        ]
    return "\n".join(lines) + "\n"


def preemption(site: UserSite) -> str:
    mode, grace_s = site.preemption
    qos = QOS_OF_PARTITION["batch"]
    return f"modify qos {qos} set PreemptMode={mode.lower()} GraceTime={grace_s}\n"
