"""Checks of train that types cannot express, and without which a training would go wrong.

Pure: each check takes a spec of correct types and yields problems. The room check has more.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..batch_sizes import uneven
from ..problems import Problem
from ..spec import Spec


def check(spec: Spec) -> Iterator[Problem]:
    """Yield what is wrong with the batch size and with DDP."""
    yield from _batch(spec)
    yield from _ddp(spec)


def problem(name: str, what: str, hint: str, *also: str) -> Problem:
    """Return a problem with a key of the section train; `also`: the dotted keys it depends on."""
    others = tuple(tuple(other.split(".")) for other in also)
    return Problem(("train", name), what, hint, others)


def _batch(spec: Spec) -> Iterator[Problem]:
    """Check the batch size. With launch.nproc_per_node auto the ranks may share it unevenly."""
    train, total = spec.train, spec.train.global_batch_size
    if total is None:
        return
    if train.grad_accum_steps != 1:
        what = f"excludes train.global_batch_size {total}, from which the trainer computes it"
        yield problem("grad_accum_steps", what, "keep one of them", "train.global_batch_size")
    world_size = 1 if spec.launch.nproc_per_node == "auto" else spec.num_ranks
    also = ("slurm.nodes", "launch.nproc_per_node")
    if not spec.slurm.is_range and world_size > 0 and total % world_size:
        yield problem("global_batch_size", *uneven(total, world_size), *also)


def _ddp(spec: Spec) -> Iterator[Problem]:
    """Refuse a static graph under no_sync(): it crashes or reduces no gradients (torch 2.13)."""
    train = spec.train
    if train.static_graph and train.grad_accum_steps > 1:
        what = f"excludes train.grad_accum_steps {train.grad_accum_steps}: DDP loses gradients"
        hint = "leave one of them out"
        yield problem("static_graph", what, hint, "train.grad_accum_steps")
    elif train.static_graph and train.global_batch_size is not None:
        what = "excludes train.global_batch_size, which may accumulate: DDP loses gradients then"
        yield problem("static_graph", what, "leave one of them out", "train.global_batch_size")
    if train.sync_batchnorm and not spec.slurm.num_gpus:
        what = "needs GPUs, and slurm.gpus_per_node is 0"
        hint = "set slurm.gpus_per_node, or leave sync_batchnorm out"
        yield problem("sync_batchnorm", what, hint, "slurm.gpus_per_node")
