"""One node's share of an attempt: its place among the nodes, and the torchrun that it starts."""

from __future__ import annotations

import os
import signal
import socket
import sys
from typing import Any

from jobs.node import rendezvous
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


def torchrun_command(spec: Spec, run_dir: RunDir, plan: dict[str, Any], node: Node) -> list[str]:
    """The torchrun command line of one node. Source: torch.distributed.run."""
    timeouts = f"join_timeout={JOIN_TIMEOUT_S},read_timeout=180"
    return [
        *(sys.executable, "-m", "torch.distributed.run"),
        f"--nnodes={len(plan['nodes'])}",
        f"--nproc-per-node={node.nproc}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={plan['rdzv_endpoint']}",
        f"--rdzv-id={plan['rdzv_id']}",
        # Left to itself torchrun guesses by host name who hosts the store.
        f"--rdzv-conf=is_host={str(node.rank == 0).lower()},{timeouts}",
        f"--local-addr={node.address}",
        "--max-restarts=0",
        "--signals-to-handle=SIGHUP,SIGQUIT",
        f"--shutdown-timeout={SHUTDOWN_TIMEOUT_S}",
        # Without -- torchrun takes a script's own --n for an abbreviation of its options.
        *("-m", "--", "jobs.node.rank", str(run_dir.path)),
        *rank_command(spec, run_dir),
    ]


class Node:
    """This node's place in the attempt."""

    def __init__(self, rank: int, plan: dict[str, Any], spec: Spec) -> None:
        self.rank = rank
        self.host = socket.gethostname()
        head = plan["head_address"]
        self.address = head if rank == 0 else rendezvous.source_address(head)
        self.interface = rendezvous.interface_of(self.address)
        self.nproc = nproc_per_node(spec, dict(os.environ))

    def environment(self, spec: Spec, run_dir: RunDir, plan: dict[str, Any]) -> dict[str, str]:
        """The environment of torchrun and the ranks; what the user has set wins."""
        attempt = plan["attempt"]
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
            "KIT_STOP_FILE": str(run_dir.attempt(attempt).stop),
            "KIT_DEADLINE": str(plan.get("deadline") or ""),
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
