"""Your own model, dataset and transform, as configs/own_parts.yaml names them."""

import torch
from torch import nn

from slurm_job_kit.trainer.api import SampleRandom, Samples


def net(hidden: int) -> nn.Module:
    """Return a model: points float32 [n, 2] to class scores [n, 2]."""
    return nn.Sequential(nn.Linear(2, hidden), nn.Tanh(), nn.Linear(hidden, 2))


def rings(num_train: int, num_test: int) -> tuple[Samples, Samples]:
    """Return a dataset, training and held-out: points on two rings; the ring is the class."""
    generator = torch.Generator().manual_seed(0)  # the same in every attempt and on every rank
    num = num_train + num_test
    labels = torch.arange(num) % 2
    angles = 6.2832 * torch.rand(num, generator=generator)
    points = (1.0 + labels)[:, None] * torch.stack([angles.cos(), angles.sin()], dim=1)
    return (
        Samples(points[:num_train], labels[:num_train]),
        Samples(points[num_train:], labels[num_train:]),
    )


class Noise:
    """A transform of whole batches on the device: each sample gets its own noise."""

    def __init__(self, amount: float) -> None:
        self.amount = amount

    def __call__(self, inputs: torch.Tensor, random: SampleRandom | None) -> torch.Tensor:
        """Return inputs float32 [n, 2] with noise; `random` is None in evaluation."""
        if random is None:
            return inputs
        # uniform(k) is float32 [n, k], from 0 up to, not with, 1.
        return inputs + self.amount * (random.uniform(inputs.shape[1]) - 0.5)
