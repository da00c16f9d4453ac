"""What a dataset is, and which samples belong to which step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch

from jobs.spec import Train
from trainer.errors import UserError
from trainer.seeds import ORDER, mix

Batch = tuple[torch.Tensor, torch.Tensor]
BYTE_SCALE = 1 / 255  # of uint8 inputs, whose numbers go from 0 to 1


@runtime_checkable
class BatchSource(Protocol):
    """A dataset that is indexed by whole batches, on the device."""

    @property
    def num_classes(self) -> int: ...

    def __len__(self) -> int: ...

    def to(self, device: torch.device) -> BatchSource:
        """The same samples on a device."""

    def batch(self, indices: torch.Tensor) -> Batch:
        """(inputs [n, ...], labels int64 [n]) of the samples with these indices.

        inputs: float32 as is, or uint8, which stands for 0 to 1.
        """


@runtime_checkable
class PerSampleSet(Protocol):
    """A dataset that is read one sample at a time, on the CPU, by worker processes if need be."""

    @property
    def num_classes(self) -> int: ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        """(input, label); uint8 inputs are handed out as float32 from 0 to 1, float32 as is."""


Source = BatchSource | PerSampleSet


@dataclass(frozen=True)
class Samples:
    """A data set in memory, which is what a dataset callable may return two of: (train, test).

    inputs: [N, ...], uint8 or float32; a batch of them is handed out as float32 times `scale`.
    labels: int64 [N], or any other integers, from 0 to num_classes - 1.
    num_classes: 0 for as many as the labels name.
    """

    inputs: torch.Tensor
    labels: torch.Tensor
    scale: float = 1.0
    num_classes: int = 0

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.labels):
            raise UserError(
                f"train.dataset gives {len(self.inputs)} inputs, but {len(self.labels)} labels"
            )
        if self.labels.is_floating_point():
            raise UserError(
                f"train.dataset gives labels of {self.labels.dtype}: make them whole numbers, int64"
            )
        object.__setattr__(self, "labels", self.labels.long())
        if len(self.labels) == 0:
            return
        lowest, highest = int(self.labels.min()), int(self.labels.max())
        if self.num_classes == 0:
            object.__setattr__(self, "num_classes", highest + 1)
        check_labels(lowest, highest, self.num_classes)

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device) -> Samples:
        """The same samples on a device."""
        return replace(self, inputs=self.inputs.to(device), labels=self.labels.to(device))

    def batch(self, indices: torch.Tensor) -> Batch:
        """(inputs, labels) of the samples with these indices."""
        inputs = self.inputs.index_select(0, indices)
        # Bytes are cheaper to move: the feed makes numbers of them last.
        if inputs.dtype != torch.uint8 or self.scale != BYTE_SCALE:
            inputs = inputs.float()
            if self.scale != 1.0:
                inputs = inputs.mul_(self.scale)
        return inputs, self.labels[indices]


def check_labels(lowest: int, highest: int, num_classes: int) -> None:
    """Refuse labels that name no class."""
    wrong = lowest if lowest < 0 else highest
    if not 0 <= wrong < num_classes:
        raise UserError(
            f"train.dataset has the label {wrong}, but labels go from 0 to num_classes - 1, "
            f"which is {num_classes - 1}"
        )


def num_classes(train: Source, test: Source) -> int:
    """How many classes the labels name."""
    return max(train.num_classes, test.num_classes)


@dataclass(frozen=True)
class Batches:
    """The training batches: pure functions of (seed, step), so any step can be looked up.

    A round is one micro batch on each rank; an optimizer step is `grad_accum_steps` rounds. The
    last step of an epoch takes the rounds that are left, unless `is_elastic`: then every step has
    the whole global batch, so that the sequence of steps is the same at any world size.
    """

    num_samples: int
    micro_batch_size: int
    grad_accum_steps: int
    world_size: int
    seed: int
    is_elastic: bool = False

    @classmethod
    def of(cls, train: Train, num_samples: int, world_size: int) -> Batches:
        """The batches of a spec, with both sides in the error where they do not fit the set."""
        size = train.global_batch_size
        if size is None:
            micro, steps = train.micro_batch_size, train.grad_accum_steps
            return cls(num_samples, micro, steps, world_size, train.seed)
        if size % world_size:
            raise UserError(_uneven(size, world_size))
        if size > num_samples:
            raise UserError(
                f"train.global_batch_size is {size}, but the training set has only "
                f"{num_samples} samples: make it {num_samples} at most"
            )
        share = size // world_size
        limit = min(share, train.micro_batch_size)
        micro = next(number for number in range(limit, 0, -1) if share % number == 0)
        return cls(num_samples, micro, share // micro, world_size, train.seed, is_elastic=True)

    def __post_init__(self) -> None:
        micro = f"train.micro_batch_size {self.micro_batch_size} x {self.world_size} ranks"
        if self._round_size > self.num_samples:
            raise UserError(
                f"{micro} is a global batch of {self._round_size}, but the training set has only "
                f"{self.num_samples} samples"
            )
        if self.grad_accum_steps > self.rounds_per_epoch:
            raise UserError(
                f"train.grad_accum_steps is {self.grad_accum_steps}, but the {self.num_samples} "
                f"training samples make only {self.rounds_per_epoch} batches of {micro}"
            )

    @property
    def _round_size(self) -> int:
        return self.micro_batch_size * self.world_size

    @property
    def global_batch_size(self) -> int:
        """Samples of an optimizer step, but for a shorter last one."""
        return self._round_size * self.grad_accum_steps

    @property
    def rounds_per_epoch(self) -> int:
        """Micro batches of each rank in an epoch."""
        if self.is_elastic:
            return self.num_samples // self.global_batch_size * self.grad_accum_steps
        return self.num_samples // self._round_size

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of an epoch."""
        return -(-self.rounds_per_epoch // self.grad_accum_steps)

    @property
    def samples_per_epoch(self) -> int:
        """Samples that an epoch uses; the rest of its order is dropped."""
        return self.rounds_per_epoch * self._round_size

    def num_micro_batches(self, step: int) -> int:
        """How many micro batches each rank adds up in a global step."""
        done = step % self.steps_per_epoch * self.grad_accum_steps
        return min(self.grad_accum_steps, self.rounds_per_epoch - done)

    def order(self, epoch: int) -> torch.Tensor:
        """The order of all samples in an epoch, the same at any world size. int64 [N]."""
        generator = torch.Generator().manual_seed(mix(ORDER, self.seed, epoch))
        return torch.randperm(self.num_samples, generator=generator)

    def micro_batches(self, order: torch.Tensor, step: int, rank: int) -> list[torch.Tensor]:
        """The indices that `rank` trains on in a global step, out of that epoch's order."""
        size, round_size = self.micro_batch_size, self._round_size
        first = step % self.steps_per_epoch * self.global_batch_size + rank * size
        starts = [first + number * round_size for number in range(self.num_micro_batches(step))]
        return [order[start : start + size] for start in starts]

    def describe(self) -> str:
        """The batches of an epoch in words."""
        rounds, used = self.rounds_per_epoch, self.samples_per_epoch
        text = (
            f"{rounds} batches per rank, {rounds * self.world_size} in all, {used} samples an "
            f"epoch, {self.num_samples - used} dropped"
        )
        if self.is_elastic or self.grad_accum_steps > 1:
            text += (
                f"; {self.steps_per_epoch} steps of {self.global_batch_size} samples, "
                f"{self.grad_accum_steps} batches of {self.micro_batch_size} on each rank"
            )
        if last := rounds % self.grad_accum_steps:
            text += f", the last step of {last}"
        return text


@dataclass(frozen=True)
class TrainingLength:
    """How long the whole training is."""

    total_steps: int
    steps_per_epoch: int
    epochs: int
    global_batch_size: int
    samples_per_epoch: int

    @classmethod
    def of(cls, epochs: int, batches: Batches) -> TrainingLength:
        """The length of `epochs` passes over these batches."""
        return cls(
            total_steps=epochs * batches.steps_per_epoch,
            steps_per_epoch=batches.steps_per_epoch,
            epochs=epochs,
            global_batch_size=batches.global_batch_size,
            samples_per_epoch=batches.samples_per_epoch,
        )

    def epoch_of(self, step: int) -> int:
        """The epoch that a step belongs to; both count from 1."""
        return (step - 1) // self.steps_per_epoch + 1

    def finished_epochs(self, step: int) -> int:
        """How many epochs are finished after a step."""
        return step // self.steps_per_epoch

    def samples(self, step: int) -> int:
        """Samples trained on after a step; the last step of an epoch may have fewer."""
        epochs, steps = divmod(step, self.steps_per_epoch)
        return epochs * self.samples_per_epoch + steps * self.global_batch_size


def _uneven(global_batch_size: int, world_size: int) -> str:
    below = global_batch_size // world_size * world_size
    sizes = " or ".join(str(size) for size in (below, below + world_size) if size > 0)
    divisors = [
        number for number in range(1, global_batch_size + 1) if global_batch_size % number == 0
    ]
    nearest = [
        *[number for number in divisors if number < world_size][-1:],
        *[number for number in divisors if number > world_size][:1],
    ]
    ranks = " or ".join(map(str, nearest))
    return (
        f"train.global_batch_size {global_batch_size} cannot be shared evenly by {world_size} "
        f"ranks: {sizes} could, or use {ranks} ranks"
    )
