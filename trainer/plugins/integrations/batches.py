"""The batches of each epoch as a function of (seed, epoch), from any position on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import torch
from torch.utils.data import Sampler


class ResumableBatches(Sampler[list[int]]):
    """A batch sampler with a position: `DataLoader(data, batch_sampler=ResumableBatches(...))`.

    Each iteration is the next epoch. All ranks share one permutation, and take its batches in turn;
    samples that do not fill one batch of every rank are dropped.
    """

    drop_last = True  # accelerate asks for it

    def __init__(
        self, num_samples: int, batch_size: int, *, seed: int = 0, is_split: bool = True
    ) -> None:
        """is_split: this sampler has the batches of this rank; False if the library splits them."""
        self.num_samples, self.batch_size, self.seed = num_samples, batch_size, seed
        self.world_size = int(os.environ.get("WORLD_SIZE", "1"))
        self.first = int(os.environ.get("RANK", "0")) if is_split else 0
        self.stride = self.world_size if is_split else 1
        self.epoch = 0  # of the iteration at hand
        self._next = (0, 0)  # the epoch of the next iteration, and the batches of a rank to skip
        self.before_next: Callable[[], None] | None = None  # called once, by the next iteration
        if self.num_steps == 0:
            what = f"{num_samples} samples make no batch of {batch_size} for each of "
            what += f"{self.world_size} ranks: take a smaller batch_size, or fewer ranks"
            raise ValueError(what)

    @property
    def num_steps(self) -> int:
        """The batches of each rank in an epoch."""
        return self.num_samples // (self.batch_size * self.world_size)

    def __len__(self) -> int:
        return self.num_steps * self.world_size // self.stride

    def seek(self, epoch: int, num_batches: int) -> None:
        """Begin the next iteration in this epoch, after so many batches of each rank."""
        self.epoch, self._next = epoch, (epoch, num_batches)

    def __iter__(self) -> Iterator[list[int]]:
        # A loader calls this, then draws a random number, then asks for the first batch.
        if self._next[1] == 0:
            self._begin()
        return self._batches()

    def _batches(self) -> Iterator[list[int]]:
        self._begin()
        self.epoch, num_skipped = self._next
        self._next = (self.epoch + 1, 0)
        generator = torch.Generator().manual_seed((self.seed << 32) + self.epoch)
        order = torch.randperm(self.num_samples, generator=generator)
        begin, end = num_skipped * self.world_size, self.num_steps * self.world_size
        for index in range(begin + self.first, end, self.stride):
            yield order[index * self.batch_size :][: self.batch_size].tolist()

    def _begin(self) -> None:
        if self.before_next is not None:
            self.before_next()
            self.before_next = None
