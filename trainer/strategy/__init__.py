"""How the ranks of a run share the model, its gradients and the optimizer.

- interface: what each strategy can do; CONTRIBUTING.md says how to add one.
- sharding: which rows of a tensor each rank has.
- ddp: each rank has all of it.
- fsdp: each rank has its rows of everything; hsdp, too.
- optimizer_rows: what the optimizer of fsdp updates.
- blocks: the repeated parts of a model, which are sharded, compiled and checkpointed one by one.
- fits: whether a model and a number of ranks fit the strategy.
"""

from __future__ import annotations

import torch

from ..contract import UNDIVIDED, Train
from ..process.context import DistributedContext
from ..process.run_handle import RankContext
from .ddp import Ddp
from .interface import Strategy


def is_divided(context: RankContext) -> bool:
    """Return whether the strategy of the spec divides tensors between the ranks."""
    return context.distributed.world_size > 1 and context.train.strategy not in UNDIVIDED


def create(train: Train, place: DistributedContext, device: torch.device) -> Strategy:
    """Return the strategy of `train.strategy`. One rank has nothing to divide: it gets ddp."""
    if train.strategy == "ddp" or place.world_size == 1:
        return Ddp(train, place, device)
    # Its import takes 0.6 s, which ddp need not wait for.
    from .fsdp import Fsdp

    return Fsdp(train, place, device)
