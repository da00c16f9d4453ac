"""Ranks of a test program: the process that has imported torch forks them."""

import contextlib
import importlib
import os
import socket
from collections.abc import Callable
from typing import Any

import torch
from torch.multiprocessing.spawn import start_processes

from slurm_job_kit.trainer.process.context import DistributedContext, init_process_group

CPU = torch.device("cpu")


def fork(be_rank: Callable[..., None], world_size: int, *given: Any) -> None:
    """Call `be_rank(rank, world_size, port, *given)` in each rank; one that fails ends all."""
    # Each rank would import them otherwise, in DDP's constructor or for a sharded strategy.
    importlib.import_module("torch._dynamo")
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module("slurm_job_kit.trainer.rooms.sharded.fsdp")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    start_processes(be_rank, (world_size, port, *given), world_size, start_method="fork")


def join(rank: int, world_size: int, port: int) -> DistributedContext:
    """Connect this rank to the others, with one thread; return its place."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "MASTER_PORT": port}
    place |= {"WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
    os.environ |= {name: str(value) for name, value in place.items()} | {"MASTER_ADDR": "127.0.0.1"}
    torch.set_num_threads(1)
    context = DistributedContext.from_env(os.environ)
    init_process_group(CPU)
    return context
