"""Which rows of a tensor each rank has: contiguous parts along the first dimension."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Sharding:
    """The division of tensors into `num_shards` parts.

    rank: this rank. Ranks i, i + num_shards, i + 2 num_shards ... have copies of part i, and rank i
    writes it to a checkpoint. One part: each rank has whole tensors.
    """

    num_shards: int
    rank: int

    @property
    def index(self) -> int:
        """The part that this rank has."""
        return self.rank % self.num_shards

    def rows(self, length: int) -> tuple[int, int]:
        """Return the first row of this rank's part and the row after its last one.

        length: the rows of the whole tensor. The division is that of torch.chunk, which FSDP2
        uses: equal parts, a smaller last one, and then empty ones.
        """
        size = -(-length // self.num_shards)
        return min(self.index * size, length), min((self.index + 1) * size, length)


@dataclass(frozen=True)
class Rows:
    """This rank's rows of a tensor that is divided; `shape` is that of the whole tensor."""

    local: torch.Tensor
    shape: tuple[int, ...]
