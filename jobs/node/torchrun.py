"""torchrun on one node of an attempt: its command line, its environment, the rank's command."""

import importlib.util
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from ..base import gpus
from ..base.stop_signals import HANDLED_BY_TORCHRUN
from ..contract.records.nodes import NODE, AttemptPlan
from ..contract.rundir import RunDir
from ..contract.spec import Launch, Spec
from . import interfaces
from .signed_torchrun import LAUNCHER

TRAINER = "slurm_job_kit.trainer"
# The seconds after which an agent kills the torchrun of a script whose ranks have ended.
END_LIMIT = "KIT_END_LIMIT_S"


def nproc_per_node(spec: Spec, environ: dict[str, str]) -> int:
    """Return the ranks of this node: the spec's number, else one per GPU, at least one."""
    if spec.launch.nproc_per_node != "auto" or spec.slurm.num_gpus:
        return spec.nproc_per_node
    return gpus.allocated_gpus(environ) or len(gpus.visible(environ)[1]) or 1


@dataclass(frozen=True)
class NodeOptions:
    """The options of torchrun that differ between attempts or between nodes.

    The names are for `submit --dry-run`, which prints the first node's command before there is one.
    """

    nnodes: int
    nproc_per_node: int
    rdzv_endpoint: str = "FIRST_NODE_ADDRESS:FREE_PORT"
    rdzv_id: str = "JOB_ID-ATTEMPT"
    is_host: bool = True  # this node hosts the store of the rendezvous
    local_addr: str = "FIRST_NODE_ADDRESS"
    log_dir: str = "TEMPORARY_DIRECTORY"  # torchrun makes empty directories below it


def torchrun_command(spec: Spec, run_dir: RunDir, node: NodeOptions) -> list[str]:
    """Return the torchrun command line of one node. Source: torch.distributed.run."""
    # The slowest node may import torch from a busy file system first.
    timeouts = "join_timeout=600,read_timeout=180"
    options = [
        f"--nnodes={node.nnodes}",
        f"--nproc-per-node={node.nproc_per_node}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={node.rdzv_endpoint}",
        f"--rdzv-id={node.rdzv_id}",
        f"--rdzv-conf=is_host={str(node.is_host).lower()},{timeouts}",
        f"--local-addr={node.local_addr}",
        "--max-restarts=0",
        f"--signals-to-handle={HANDLED_BY_TORCHRUN.name}",
    ]
    if knows_shutdown_timeout():
        # After one rank failed, the others get SIGTERM, and SIGKILL this much later.
        options.append("--shutdown-timeout=5")
    # Without -- torchrun would read a script's own --n as an abbreviation of its own options.
    options += [f"--log-dir={node.log_dir}", "-m", "--", TRAINER, str(run_dir.path)]
    return [sys.executable, "-uXfaulthandler", "-m", LAUNCHER, *options, *spec.launch.args]


def knows_shutdown_timeout() -> bool:
    """Return whether torchrun has --shutdown-timeout; torch 2.11 waits 30 s, and has no option."""
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:  # `submit --dry-run` on a host without torch
        return True
    source = Path(torch.origin).with_name("distributed") / "run.py"
    return "shutdown-timeout" in source.read_text(encoding="utf-8")


class Node:
    """This node in the attempt: rank, host name, address, interface, number of ranks.

    Raises: OSError if no route leads to the first node; UserError for launch.interface.
    """

    def __init__(self, rank: int, plan: AttemptPlan, spec: Spec) -> None:
        self.rank = rank
        self.host = plan.name_of(rank, os.environ)
        head = plan.head.address
        # Over loopback all agents run on one machine: a local run, or a job of one node.
        chosen = spec.launch.interface if interfaces.is_reachable(head) else None
        self.is_interface_chosen = chosen is not None
        if rank == 0:
            self.address = head
        elif chosen is not None:
            self.address = interfaces.choose(chosen, head)[1]
        else:
            self.address = interfaces.source_address(head)
        self.interface = interfaces.interface_of(self.address)
        self.nproc = nproc_per_node(spec, dict(os.environ))

    def options(self, plan: AttemptPlan, log_dir: str) -> NodeOptions:
        """Return torchrun's options on this node. `log_dir`: an empty directory of this node."""
        return NodeOptions(
            nnodes=len(plan.nodes),
            nproc_per_node=self.nproc,
            rdzv_endpoint=plan.head.endpoint,
            rdzv_id=plan.rdzv_id,
            # Without is_host torchrun guesses from host names which node hosts the store.
            is_host=self.rank == 0,
            local_addr=self.address,
            log_dir=log_dir,
        )

    def environment(self, spec: Spec, run_dir: RunDir, plan: AttemptPlan) -> dict[str, str]:
        """Return the environment of torchrun and ranks; launch.env overrides kit variables."""
        return self._with_interface() | {
            NODE: self.host,
            "KIT_AGENT_PID": str(os.getpid()),
            "KIT_RUN_DIR": str(run_dir.path),
            "KIT_RUN_ID": run_dir.run_id,
            "KIT_WORK_DIR": "",
            "KIT_CHECKPOINT_DIR": str(run_dir.checkpoints),
            "KIT_ATTEMPT": str(plan.attempt),
            "KIT_STOP_FILE": str(run_dir.attempt(plan.attempt).stop_requested),
            "KIT_DEADLINE": str(plan.deadline or ""),
            **variables_of_spec(spec),
        }

    def _with_interface(self) -> dict[str, str]:
        """Return this environment with the variables that select the interface of gloo and NCCL.

        Gloo resolves its own host name, and takes loopback without an error if that gives
        127.0.1.1. NCCL reads a name as a prefix, but with = before it as the whole name: eth1 is
        also a prefix of eth10. Source: NCCL, environment variables, NCCL_SOCKET_IFNAME.
        A value that the user has exported stays, unless launch.interface is set.
        """
        env, own = {**os.environ}, self.interface
        if own is None:
            return env
        for name, value in {"GLOO_SOCKET_IFNAME": own, "NCCL_SOCKET_IFNAME": f"={own}"}.items():
            if name not in env or self.is_interface_chosen:
                env[name] = value
        return env


def variables_of_spec(spec: Spec) -> dict[str, str]:
    """Return the variables of torchrun and the ranks that are the same in every attempt."""
    hash_seed = os.environ.get("PYTHONHASHSEED", "")  # a setup line may have set it
    return {
        # Sets of texts have the same order in each process and start, and so have labels by it.
        "PYTHONHASHSEED": hash_seed if hash_seed.isdecimal() else "0",
        "OMP_NUM_THREADS": str(spec.launch.threads_per_rank),
        # Needed before rank 0, which alone reads the spec, can share it.
        "KIT_HANG_TIMEOUT_S": str(spec.launch.hang_timeout_s),
        "KIT_NUM_GPUS": str(spec.slurm.num_gpus),
        **spec.launch.env,
    }


def stop_signal(launch: Launch) -> signal.Signals | None:
    """Return the signal on which a rank stops; None for a user's script that handles no signal."""
    if launch.is_trainer:
        return signal.SIGTERM
    if launch.stop_signal == "none":
        return None
    return signal.Signals[f"SIG{launch.stop_signal}"]
