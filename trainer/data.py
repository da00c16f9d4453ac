"""Samples in memory, and which of them belong to which step."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from trainer.errors import UserError
from trainer.seeds import ORDER, mix


@dataclass(frozen=True)
class Samples:
    """A data set in memory, which is what a dataset callable returns two of: (train, test).

    inputs: [N, ...], uint8 or float32; a batch of them is handed out as float32 times `scale`.
    labels: int64 [N], from 0 on.
    """

    inputs: torch.Tensor
    labels: torch.Tensor
    scale: float = 1.0

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device) -> Samples:
        """The same samples on a device."""
        return replace(self, inputs=self.inputs.to(device), labels=self.labels.to(device))

    def batch(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(inputs, labels) of the samples with these indices."""
        inputs = self.inputs[indices].float()
        if self.scale != 1.0:
            inputs = inputs * self.scale
        return inputs, self.labels[indices]


def num_classes(train: Samples, test: Samples) -> int:
    """How many classes the labels name."""
    return 1 + int(max(train.labels.max(), test.labels.max()))


@dataclass(frozen=True)
class Batches:
    """The training batches: pure functions of (seed, step), so any step can be looked up."""

    num_samples: int
    micro_batch_size: int
    world_size: int
    seed: int

    def __post_init__(self) -> None:
        if self.global_batch_size > self.num_samples:
            raise UserError(
                f"train.micro_batch_size {self.micro_batch_size} x {self.world_size} ranks is a "
                f"global batch of {self.global_batch_size}, but the training set has only "
                f"{self.num_samples} samples"
            )

    @property
    def global_batch_size(self) -> int:
        return self.micro_batch_size * self.world_size

    @property
    def steps_per_epoch(self) -> int:
        """Whole global batches in the set; the rest of an epoch's order is dropped."""
        return self.num_samples // self.global_batch_size

    def order(self, epoch: int) -> torch.Tensor:
        """The order of all samples in an epoch, the same at any world size. int64 [N]."""
        generator = torch.Generator().manual_seed(mix(ORDER, self.seed, epoch))
        return torch.randperm(self.num_samples, generator=generator)

    def micro_batch(self, order: torch.Tensor, step: int, rank: int) -> torch.Tensor:
        """The indices that `rank` trains on in a global step, out of that epoch's order."""
        start = (step % self.steps_per_epoch) * self.global_batch_size
        start += rank * self.micro_batch_size
        return order[start : start + self.micro_batch_size]

    def describe(self) -> str:
        """The batches of an epoch in words."""
        steps, used = self.steps_per_epoch, self.steps_per_epoch * self.global_batch_size
        return (
            f"{steps} batches per rank, {steps * self.world_size} in all, {used} samples an "
            f"epoch, {self.num_samples - used} dropped"
        )
