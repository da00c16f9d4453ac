"""Which samples belong to which step, and how long the training is."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import torch

from ..contract import BatchSizes, Train
from ..errors import UserError
from ..seeds import ORDER, mix


class BatchIndices(NamedTuple):
    """The sample indices of one batch of `step`. indices: int64 [n]."""

    step: int
    indices: torch.Tensor


@dataclass(frozen=True)
class Batches(BatchSizes):
    """The training batches as pure functions of (seed, step): any step can be looked up.

    The last step of an epoch takes the remaining rounds, unless `is_elastic`: then every step has
    the whole global batch, so that the sequence of steps is the same at any world size.

    Raises UserError where the training set is too small for one global batch.
    """

    num_samples: int
    seed: int
    is_elastic: bool

    @classmethod
    def of(cls, train: Train, num_samples: int, world_size: int) -> Batches:
        """Return the batches of a spec over `num_samples` training samples.

        Raises UserError with both numbers where train.global_batch_size does not fit.
        """
        sizes, size = BatchSizes.for_ranks(train, world_size), train.global_batch_size
        if size is not None and size > num_samples:
            what = f"train.global_batch_size is {size}, but the training set has only {num_samples}"
            raise UserError(f"{what} samples: make it {num_samples} at most")
        return cls(**vars(sizes), num_samples=num_samples, seed=train.seed, is_elastic=bool(size))

    def __post_init__(self) -> None:
        micro = f"train.micro_batch_size {self.micro_batch_size} x {self.world_size} ranks"
        round_size = len(self.round_of(0))
        if round_size > self.num_samples:
            what = f"{micro} is a global batch of {round_size}, but the training set has only "
            most = self.num_samples // self.world_size
            hint = f"make train.micro_batch_size {most} at most" if most else "take fewer ranks"
            raise UserError(f"{what}{self.num_samples} samples", hint)
        if self.grad_accum_steps > self.rounds_per_epoch:
            samples = f"{self.num_samples} training samples make only {self.rounds_per_epoch}"
            what = f"train.grad_accum_steps is {self.grad_accum_steps}, but the {samples}"
            raise UserError(f"{what} batches of {micro}")

    @functools.cached_property
    def rounds_per_epoch(self) -> int:
        """Micro batches of each rank in one epoch."""
        if self.is_elastic:
            return self.num_samples // self.global_batch_size * self.grad_accum_steps
        return self.num_samples // len(self.round_of(0))

    @functools.cached_property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of one epoch."""
        return -(-self.rounds_per_epoch // self.grad_accum_steps)

    @property
    def samples_per_epoch(self) -> int:
        """Samples that one epoch uses; the other samples of its order are dropped."""
        return self.rounds_per_epoch * self.global_batch_size // self.grad_accum_steps

    def num_micro_batches(self, step: int) -> int:
        """Return how many micro batches each rank accumulates in a global step."""
        done = step % self.steps_per_epoch * self.grad_accum_steps
        return min(self.grad_accum_steps, self.rounds_per_epoch - done)

    def order(self, epoch: int) -> torch.Tensor:
        """Return the order of all samples in an epoch: integers [N], the same at any world size.

        int32 has the same numbers as int64 and takes half the memory, of every rank.
        """
        generator = torch.Generator().manual_seed(mix(ORDER, self.seed, epoch))
        dtype = torch.int32 if self.num_samples < 2**31 else torch.int64
        return torch.randperm(self.num_samples, generator=generator, dtype=dtype)

    def micro_batches(self, order: torch.Tensor, step: int, rank: int) -> list[torch.Tensor]:
        """Return the sample indices of `rank` in a global step, int64 [n] for each micro batch.

        order: [N], `order()` of the epoch that the step belongs to. In one of `idle_rounds` the
        rank gets another rank's sample, which the loop does not count.
        """
        first = step % self.steps_per_epoch * self.global_batch_size
        parts = []
        for number in range(self.num_micro_batches(step)):
            places = self.round_of(number)
            size, rest = divmod(len(places), self.world_size)
            start = places.start + rank * size + min(rank, rest)
            end = start + size + (rank < rest)
            start = min(start, end - 1)
            parts.append(order[first + start : first + end].long())
        return parts


@dataclass(frozen=True)
class TrainingLength:
    """The length of the whole training, in steps, epochs and samples."""

    total_steps: int
    steps_per_epoch: int
    epochs: int
    global_batch_size: int
    samples_per_epoch: int

    @classmethod
    def of(cls, train: Train, batches: Batches) -> TrainingLength:
        """Return the length of train.max_steps, else of train.epochs passes over these batches."""
        steps_per_epoch = batches.steps_per_epoch
        total_steps = train.max_steps or train.epochs * steps_per_epoch
        return cls(
            total_steps=total_steps,
            steps_per_epoch=steps_per_epoch,
            epochs=-(-total_steps // steps_per_epoch),
            global_batch_size=batches.global_batch_size,
            samples_per_epoch=batches.samples_per_epoch,
        )

    def periods(self, epochs: int | None, steps: int | None) -> tuple[int, ...]:
        """Return the numbers of steps in `epochs` epochs and in `steps` steps; none for None."""
        return (*([epochs * self.steps_per_epoch] if epochs else ()), *([steps] if steps else ()))

    def epoch_of(self, step: int) -> int:
        """Return the epoch that a step belongs to; both count from 1."""
        return (step - 1) // self.steps_per_epoch + 1

    def samples(self, step: int) -> int:
        """Return the number of samples trained on up to and including a step, over all ranks."""
        epochs, steps = divmod(step, self.steps_per_epoch)
        return epochs * self.samples_per_epoch + steps * self.global_batch_size
