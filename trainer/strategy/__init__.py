"""How the ranks of a run share the model, its gradients and the optimizer.

- interface: what each strategy can do, here as ddp does it; which rows of a tensor each rank has.
"""

import torch

from ..contract import Train
from ..parts import parts
from ..process.context import DistributedContext
from ..process.run_handle import RankContext
from .interface import Strategy


def is_divided(context: RankContext) -> bool:
    """Return whether the strategy of the spec divides tensors between the ranks."""
    return context.distributed.world_size > 1 and context.train.strategy != "ddp"


def create(train: Train, place: DistributedContext, device: torch.device) -> Strategy:
    """Return the strategy of `train.strategy`. One rank has nothing to divide: it gets ddp.

    A plugin may have a ddp of its own, which does more. Raises: UserError.
    """
    name = train.strategy if place.world_size > 1 else "ddp"
    strategy: Strategy = {"ddp": Strategy, **parts("strategy")}[name](train, place, device)
    return strategy
