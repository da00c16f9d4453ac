"""The samples of an optimizer step, and how the ranks share them. Standard library only."""

import math
from dataclasses import dataclass
from typing import Self

from ..base.errors import UserError
from .spec import Spec, Train


@dataclass(frozen=True)
class BatchSizes:
    """The samples of an optimizer step, which the ranks share in `grad_accum_steps` rounds.

    A round is one micro batch on each rank. Where the ranks cannot share a step evenly, the sizes
    of two micro batches differ by one sample; of a round the first ranks have the larger ones.
    """

    global_batch_size: int
    grad_accum_steps: int
    world_size: int

    @classmethod
    def for_ranks(cls, train: Train, world_size: int, is_even_at_any_cost: bool = False) -> Self:
        """Return the batch of a spec; of train.global_batch_size the fewest rounds that fit.

        Then train.micro_batch_size is the limit of each micro batch. Even shares are taken where
        they need at most twice the rounds: 1,104 samples on 48 ranks would be 23 rounds of 1. Or at
        any cost, where the ranks can share a step evenly at all.
        Raises: UserError for more ranks than train.global_batch_size.
        """
        size, limit = train.global_batch_size, train.micro_batch_size
        if size is None:
            rounds = train.grad_accum_steps
            return cls(limit * rounds * world_size, rounds, world_size)
        if size < world_size:
            raise UserError(
                f"train.global_batch_size {size} is less than one sample for each of {world_size} "
                f"ranks: write {world_size} at least, or take fewer ranks"
            )
        share, rest = divmod(size, world_size)
        rounds = math.ceil(size / (world_size * limit))
        if not rest:
            most = share if is_even_at_any_cost else 2 * rounds
            even = (each for each in range(rounds, most + 1) if share % each == 0)
            rounds = next(even, rounds)
        sizes = cls(size, rounds, world_size)
        if train.sync_batchnorm and sizes.idle_rounds(world_size - 1):
            # A rank without a sample computes one that counts in the statistics all the same.
            raise UserError(
                f"train.sync_batchnorm: {world_size} ranks cannot share train.global_batch_size "
                f"{size} evenly in micro batches of 1: raise train.micro_batch_size"
            )
        return sizes

    @property
    def is_even(self) -> bool:
        """Whether all micro batches have the same size."""
        return self.global_batch_size % (self.grad_accum_steps * self.world_size) == 0

    @property
    def micro_batch_size(self) -> int:
        """Samples of the largest micro batch."""
        return math.ceil(self.global_batch_size / (self.grad_accum_steps * self.world_size))

    @property
    def micro_batch_sizes(self) -> str:
        """The samples of each micro batch as text, such as `18 or 19`."""
        size = self.micro_batch_size
        return f"{size}" if self.is_even else f"{size - 1} or {size}"

    def round_of(self, number: int) -> range:
        """Return the places of the samples of a round, from 0, among those of its step."""
        size, rounds = self.global_batch_size, self.grad_accum_steps
        return range(number * size // rounds, (number + 1) * size // rounds)

    def idle_rounds(self, rank: int) -> frozenset[int]:
        """Return the rounds that have no sample for a rank.

        Only micro batches of one sample have such rounds: a larger one would be above the limit.
        """
        rounds = range(self.grad_accum_steps)
        return frozenset(each for each in rounds if len(self.round_of(each)) <= rank)


def global_batch_size(spec: Spec) -> int:
    """Return the samples of a step with as many ranks as the spec asks for."""
    return (
        spec.train.global_batch_size
        or BatchSizes.for_ranks(spec.train, spec.num_ranks).global_batch_size
    )


def uneven(size: int, world_size: int) -> tuple[str, str]:
    """Return what is wrong with a global batch of `size` samples, and what would fit."""
    below = size // world_size * world_size
    fit = " or ".join(str(each) for each in (below, below + world_size) if each > 0)
    return f"{size} cannot be shared evenly by {world_size} ranks", f"write {fit}"
