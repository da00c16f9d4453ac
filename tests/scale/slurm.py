"""The simulated slurmctld: nodes, jobs, and its answers to the kit's commands as text."""

import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slurm_job_kit.jobs.slurm.hostlist import expand_hostlist

PARTITION = "batch"
CONFIG = """\
JobRequeue              = 1
KillWait                = 30 sec
MaxBatchRequeue         = 5
PreemptMode             = REQUEUE
PreemptType             = preempt/partition_prio
SLURM_VERSION           = {version}
"""


@dataclass
class QueuedJob:
    """A job of the simulated queue; `nodes` is empty while it waits."""

    job_id: str
    size: int
    not_before: float = 0.0
    state: str = "PENDING"
    restarts: int = 0
    is_preempted: bool = False
    excluded: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()


@dataclass
class Slurm:
    """Slurm with nodes n00000, n00001, ...; `down` and `queue` are changed by the world only.

    A start gets the free nodes with the lowest numbers, so a bad node comes back if it can.
    """

    num_nodes: int
    requeue_s: float
    version: str = "22.05.8"
    now: float = 0.0
    down: dict[str, float] = field(default_factory=dict)  # node: when it returns
    jobs: dict[str, QueuedJob] = field(default_factory=dict)
    used: dict[str, str] = field(default_factory=dict)  # node: job id
    calls: Counter[str] = field(default_factory=Counter)  # by command

    def __post_init__(self) -> None:
        self.names = tuple(f"n{number:05d}" for number in range(self.num_nodes))

    def start_if_possible(self, job: QueuedJob) -> bool:
        """Give a pending job its nodes, if there are enough."""
        if job.state != "PENDING" or job.not_before > self.now:
            return False
        out = {*job.excluded, *self.down, *self.used}
        free = [node for node in self.names if node not in out]
        if len(free) < job.size:
            return False
        job.nodes, job.state, job.is_preempted = tuple(free[: job.size]), "RUNNING", False
        self.used.update(dict.fromkeys(job.nodes, job.job_id))
        return True

    def release(self, job: QueuedJob, state: str) -> None:
        for node in job.nodes:
            self.used.pop(node, None)
        job.nodes, job.state = (), state

    def requeue(self, job: QueuedJob) -> None:
        """Put a job back into the queue, as `scontrol requeue` or a lost node does."""
        self.release(job, "PENDING")
        job.restarts += 1
        job.not_before = self.now + self.requeue_s

    def call(
        self, argv: Sequence[str], environ: Mapping[str, str] | None = None, **more: str
    ) -> subprocess.CompletedProcess[str]:
        """In place of jobs.slurm.client.call: the answer of slurmctld, which is counted."""
        command, *words = argv
        name = " ".join([command, *[w for w in words if not w.startswith("--")][:2]])
        for prefix, answer in _ANSWERS.items():
            if name.startswith(prefix):
                self.calls[prefix] += 1
                text = answer(self, list(words))
                return subprocess.CompletedProcess(argv, 0 if text else 1, text or "", "")
        raise AssertionError(f"the simulated Slurm does not know {argv[:4]}")

    def is_answering(self, node: str, *_: object) -> bool:
        return node not in self.down

    def _show_job(self, words: list[str]) -> str:
        job = self.jobs[words[-1]]
        return (
            f"JobId={job.job_id} JobName=x\n   JobState={job.state} Reason=None Dependency=(null)\n"
            f"   Requeue=1 Restarts={job.restarts} BatchFlag=1\n"
            f"   RunTime=00:00:00 TimeLimit=UNLIMITED\n"
            f"   PreemptTime={'2026-01-01T00:00:00' if job.is_preempted else 'None'}\n"
            f"   ReqNodeList=(null) ExcNodeList={','.join(job.excluded) or '(null)'}\n"
        )

    def _requeue(self, words: list[str]) -> str:
        self.requeue(self.jobs[words[-1]])
        return "\n"

    def _update(self, words: list[str]) -> str:
        values = dict(word.split("=", 1) for word in words[1:])
        job = self.jobs[values["JobId"]]
        if "ExcNodeList" not in values:  # Requeue=0
            return "\n"
        nodes = values["ExcNodeList"]
        job.excluded = tuple(expand_hostlist(nodes)) if nodes else ()
        return "\n"

    def _test_only(self, words: list[str]) -> str:
        options = dict(word.split("=", 1) for word in words if "=" in word)
        left = self.num_nodes - len(expand_hostlist(options.get("--exclude", "")))
        return "\n" if left >= int(options["--nodes"]) else ""

    def _show_node(self, words: list[str]) -> str:
        return "\n".join(f"NodeName={node}\n   BootTime=1 x" for node in words[-1].split(","))

    def _show_partition(self, _words: list[str]) -> str:
        return f"PartitionName={PARTITION} PreemptMode=REQUEUE TotalNodes={self.num_nodes}\n"

    def _show_config(self, _words: list[str]) -> str:
        return CONFIG.format(version=self.version)


_ANSWERS = {
    "scontrol show job": Slurm._show_job,
    "scontrol requeue": Slurm._requeue,
    "scontrol update": Slurm._update,
    "scontrol show node": Slurm._show_node,
    "scontrol show partition": Slurm._show_partition,
    "scontrol show config": Slurm._show_config,
    "scancel": lambda *_: "\n",
    "sbatch": Slurm._test_only,
}
