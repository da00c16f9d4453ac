"""The synthetic images of configs/s1.yaml."""

import torch

from slurm_job_kit.trainer.api import Samples


def images(num_train: int, num_test: int) -> tuple[Samples, Samples]:
    """Return images uint8 [n, 3, 32, 32] of ten classes, training and held-out.

    Each class has a faint pattern of its own under the noise, so that there is something to learn.
    """
    generator = torch.Generator().manual_seed(0)  # the same on every rank and at every start
    num = num_train + num_test
    patterns = torch.randint(0, 16, (10, 3, 32, 32), dtype=torch.uint8, generator=generator)
    pixels = torch.randint(0, 240, (num, 3, 32, 32), dtype=torch.uint8, generator=generator)
    labels = torch.arange(num) % 10
    pixels += patterns[labels]
    scale = 1 / 255  # the model gets numbers from 0 to 1
    return (
        Samples(pixels[:num_train], labels[:num_train], scale),
        Samples(pixels[num_train:], labels[num_train:], scale),
    )
