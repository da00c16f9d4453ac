"""How the ranks of a run share the model, its gradients and the optimizer.

- interface: what each strategy can do; CONTRIBUTING.md says how to add one.
- sharding: which rows of a tensor each rank has.
- ddp: each rank has all of it.
"""

from __future__ import annotations

import torch

from slurm_job_kit.jobs.spec import Train
from slurm_job_kit.trainer.dist.context import DistributedContext
from slurm_job_kit.trainer.dist.run_handle import RankContext
from slurm_job_kit.trainer.strategy.ddp import Ddp
from slurm_job_kit.trainer.strategy.interface import Strategy


def is_divided(context: RankContext) -> bool:
    """Return whether the strategy of the spec divides tensors between the ranks."""
    return context.distributed.world_size > 1 and context.train.strategy != "ddp"


def create(train: Train, place: DistributedContext, device: torch.device) -> Strategy:
    """Return the strategy of `train.strategy`."""
    return Ddp(train, place, device)
