"""One node's share of an attempt: its place among the nodes, and the torchrun that it starts."""

from __future__ import annotations

import os
import signal
import socket
import sys
from dataclasses import dataclass

from jobs.node import rendezvous
from jobs.records import AttemptPlan
from jobs.rundir import RunDir
from jobs.spec import Launch, Spec

JOIN_TIMEOUT_S = 600  # the slowest node's import of torch from a busy file system
SHUTDOWN_TIMEOUT_S = 5  # torchrun's patience with ranks that survive their peers


def nproc_per_node(spec: Spec, environ: dict[str, str]) -> int:
    """Ranks on this node: as the spec says; for auto one per GPU, or one where there is none."""
    if spec.launch.nproc_per_node != "auto":
        return spec.launch.nproc_per_node
    if spec.slurm.gpus_per_node:
        return spec.slurm.gpus_per_node
    on_node = environ.get("SLURM_GPUS_ON_NODE", "")
    if on_node.isdigit() and int(on_node) > 0:
        return int(on_node)
    visible = [device for device in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if device]
    return max(1, len(visible))


def rank_command(spec: Spec, run_dir: RunDir) -> list[str]:
    """What each rank becomes."""
    launch = spec.launch
    if launch.script is not None:
        return [sys.executable, "-u", launch.script, *launch.args]
    if launch.module is not None:
        return [sys.executable, "-u", "-m", launch.module, *launch.args]
    return [sys.executable, "-u", "-m", "trainer", str(run_dir.path), *launch.args]


@dataclass(frozen=True)
class NodeOptions:
    """What differs between attempts and nodes in torchrun's command line."""

    nnodes: int
    nproc_per_node: int
    rdzv_endpoint: str
    rdzv_id: str
    is_host: bool  # this node hosts the store of the rendezvous
    local_addr: str


def placeholders(spec: Spec) -> NodeOptions:
    """The first node's options for `submit --dry-run`, with names for what only the job knows."""
    nproc = nproc_per_node(spec, {})
    endpoint, rdzv_id = "FIRST_NODE_ADDRESS:FREE_PORT", "JOB_ID-ATTEMPT"
    return NodeOptions(spec.slurm.nodes, nproc, endpoint, rdzv_id, True, "FIRST_NODE_ADDRESS")


def torchrun_command(spec: Spec, run_dir: RunDir, node: NodeOptions) -> list[str]:
    """The torchrun command line of one node. Source: torch.distributed.run."""
    timeouts = f"join_timeout={JOIN_TIMEOUT_S},read_timeout=180"
    return [
        *(sys.executable, "-m", "torch.distributed.run"),
        f"--nnodes={node.nnodes}",
        f"--nproc-per-node={node.nproc_per_node}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={node.rdzv_endpoint}",
        f"--rdzv-id={node.rdzv_id}",
        f"--rdzv-conf=is_host={str(node.is_host).lower()},{timeouts}",
        f"--local-addr={node.local_addr}",
        "--max-restarts=0",
        "--signals-to-handle=SIGHUP,SIGQUIT",
        f"--shutdown-timeout={SHUTDOWN_TIMEOUT_S}",
        # Without -- torchrun takes a script's own --n for an abbreviation of its options.
        *("-m", "--", "jobs.node.rank", str(run_dir.path)),
        *rank_command(spec, run_dir),
    ]


class Node:
    """This node's place in the attempt."""

    def __init__(self, rank: int, plan: AttemptPlan, spec: Spec) -> None:
        self.rank = rank
        self.host = socket.gethostname()
        head = plan.head_address
        self.address = head if rank == 0 else rendezvous.source_address(head)
        self.interface = rendezvous.interface_of(self.address)
        self.nproc = nproc_per_node(spec, dict(os.environ))

    def options(self, plan: AttemptPlan, rdzv_endpoint: str) -> NodeOptions:
        """What torchrun on this node is given."""
        return NodeOptions(
            nnodes=len(plan.nodes),
            nproc_per_node=self.nproc,
            rdzv_endpoint=rdzv_endpoint,
            rdzv_id=plan.rdzv_id,
            # Left to itself torchrun guesses by host name who hosts the store.
            is_host=self.rank == 0,
            local_addr=self.address,
        )

    def environment(self, spec: Spec, run_dir: RunDir, plan: AttemptPlan) -> dict[str, str]:
        """The environment of torchrun and the ranks; what the user has set wins."""
        attempt = plan.attempt
        env = dict(os.environ)
        # Gloo looks its own host name up and silently takes loopback where that is 127.0.1.1.
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            if self.interface is not None:
                env.setdefault(name, self.interface)
        return env | {
            "KIT_AGENT_PID": str(os.getpid()),
            "KIT_RUN_DIR": str(run_dir.path),
            "KIT_CHECKPOINT_DIR": str(run_dir.checkpoints),
            "KIT_ATTEMPT": str(attempt),
            "KIT_STOP_FILE": str(run_dir.attempt(attempt).stop_requested),
            "KIT_DEADLINE": str(plan.deadline or ""),
            "OMP_NUM_THREADS": str(spec.launch.threads_per_rank),
            **spec.launch.env,
        }


def stop_signal(launch: Launch) -> signal.Signals | None:
    """What tells a rank to stop; None for a script that is not made for any signal."""
    if launch.is_trainer:
        return signal.SIGTERM
    if launch.stop_signal == "none":
        return None
    return signal.Signals[f"SIG{launch.stop_signal}"]
