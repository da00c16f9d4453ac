"""This rank's place in the attempt, from torchrun's variables, and the process group."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from ..contract import gpus, node_name
from ..errors import UserError, log

# Bounds the rendezvous and every collective: a rank whose peer vanished fails after this time. The
# watchdog's limits are shorter, and it names the rank at fault.
COLLECTIVE_TIMEOUT = timedelta(minutes=40)

BROADCAST_BYTES = 64 * 2**20

TORCHRUN_VARIABLES = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")


@dataclass(frozen=True)
class DistributedContext:
    """This rank's place among all ranks. Source: torchrun, "Environment Variables"."""

    rank: int
    local_rank: int
    group_rank: int
    world_size: int
    local_world_size: int
    host: str

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> DistributedContext:
        """Return the context from torchrun's variables; UserError if one is missing."""
        missing = [name for name in TORCHRUN_VARIABLES if name not in environ]
        if missing:
            hint = "start it by torchrun --standalone --nproc-per-node=1 -m trainer RUN_DIR"
            raise UserError(f"{', '.join(missing)} not set", hint)
        values = {name.lower(): int(environ[name]) for name in TORCHRUN_VARIABLES}
        return cls(**values, host=node_name(environ))

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, the only one that writes and lists shared files."""
        return self.rank == 0

    def log(self, text: str) -> None:
        """Write a line to the log of rank 0."""
        if self.is_first:
            log(text)


def choose_device(context: DistributedContext) -> tuple[torch.device, str]:
    """Return this rank's device and the reason for it."""
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if num_gpus >= context.local_world_size:
        return torch.device("cuda", context.local_rank), f"{num_gpus} GPUs on this node"
    reason = f"{num_gpus} GPUs for {context.local_world_size} ranks on this node"
    return torch.device("cpu"), reason


def check_device(num_gpus: int, asked: str, device: torch.device, reason: str) -> None:
    """Raise UserError on a CPU if the job asks for GPUs.

    num_gpus: of each node. asked: says so in the error. reason: that of `choose_device`.
    """
    if num_gpus > 0 and device.type != "cuda":
        cause = gpus.limiting_variable(os.environ, num_gpus)
        if torch.version.cuda is None and torch.version.hip is None:
            cause = "it is a CPU build"
        cause = cause or "look at nvidia-smi on the node, and at launch.nproc_per_node"
        what = f"{asked}, but torch {torch.__version__} sees {reason}: {cause}"
        raise UserError(what, "slurm.gpus_per_node: 0 trains on the CPU")


def init_process_group(device: torch.device) -> None:
    """Connect all ranks: nccl between GPUs, gloo between CPUs. Fails after `COLLECTIVE_TIMEOUT`."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", timeout=COLLECTIVE_TIMEOUT, device_id=device)
    else:
        dist.init_process_group("gloo", timeout=COLLECTIVE_TIMEOUT)


def broadcast_bytes(data: bytes | None, device: torch.device) -> bytes:
    """Return rank 0's bytes on every rank, all of which call it; others' `data` is ignored."""
    size = torch.tensor([len(data or b"")], dtype=torch.int64, device=device)
    dist.broadcast(size, src=0)
    whole = torch.empty(int(size.item()), dtype=torch.uint8)
    if data and dist.get_rank() == 0:
        whole = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    # In parts, because the GPU also holds the model.
    for part in torch.split(whole, BROADCAST_BYTES):
        buffer = part.to(device)
        dist.broadcast(buffer, src=0)
        part.copy_(buffer)
    return whole.numpy().tobytes()


def of_first(value: bool, device: torch.device) -> bool:
    """Return the `value` of rank 0 on every rank, all of which call it."""
    return bool(gather(torch.tensor([int(value)], device=device))[0])


def gather(value: torch.Tensor) -> list[torch.Tensor]:
    """Return the `value` of every rank, all of one shape, in rank order. All ranks call it.

    Without a process group (the plugin check) only this process's.
    """
    if not dist.is_initialized():
        return [value]
    values = [torch.empty_like(value) for _ in range(dist.get_world_size())]
    dist.all_gather(values, value)
    return values
