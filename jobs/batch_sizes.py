"""The samples of an optimizer step, and how the ranks share them. Standard library only."""

from __future__ import annotations

import math
from dataclasses import dataclass

from slurm_job_kit.jobs.errors import UserError
from slurm_job_kit.jobs.spec import Spec, Train


@dataclass(frozen=True)
class BatchSizes:
    """The samples of an optimizer step: each rank accumulates micro batches of one size."""

    micro_batch_size: int
    grad_accum_steps: int
    world_size: int

    @classmethod
    def for_ranks(cls, train: Train, world_size: int) -> BatchSizes:
        """Return the batch of a spec; of train.global_batch_size the largest micro batches.

        Raises: UserError where the ranks cannot share train.global_batch_size.
        """
        size = train.global_batch_size
        if size is None:
            return cls(train.micro_batch_size, train.grad_accum_steps, world_size)
        if size % world_size:
            what, way_out = uneven(size, world_size)
            raise UserError(f"train.global_batch_size {what}: {way_out}")
        share = size // world_size
        limit = min(share, train.micro_batch_size)
        micro = next(number for number in range(limit, 0, -1) if share % number == 0)
        return cls(micro, share // micro, world_size)

    @property
    def round_size(self) -> int:
        """Samples of one micro batch on each rank."""
        return self.micro_batch_size * self.world_size

    @property
    def global_batch_size(self) -> int:
        """Samples of an optimizer step; the last step of an epoch may have fewer."""
        return self.round_size * self.grad_accum_steps


def global_batch_size(spec: Spec) -> int:
    """Return the samples of a step with as many ranks as the spec asks for."""
    return (
        spec.train.global_batch_size
        or BatchSizes.for_ranks(spec.train, spec.num_ranks).global_batch_size
    )


def uneven(size: int, world_size: int) -> tuple[str, str]:
    """Return what is wrong with a global batch of `size` samples, and what would fit."""
    below = size // world_size * world_size
    sizes = " or ".join(str(each) for each in (below, below + world_size) if each > 0)
    small = [number for number in range(1, math.isqrt(size) + 1) if size % number == 0]
    divisors = sorted({*small, *(size // number for number in small)})
    nearest = [
        *[number for number in divisors if number < world_size][-1:],
        *[number for number in divisors if number > world_size][:1],
    ]
    ranks = " or ".join(map(str, nearest))
    what = f"{size} cannot be shared evenly by {world_size} ranks"
    return what, f"write {sizes}, or take {ranks} ranks"
