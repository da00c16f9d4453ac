"""An objective of one's own, with masks and a batch that is a dict; a stream of one's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from slurm_job_kit.trainer.api import Sums


class Shapes(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Noisy images [1, 16, 16] of a bright square, its mask, and which pixels are known."""

    def __init__(self, num_samples: int, seed: int) -> None:
        self.num_samples, self.seed = num_samples, seed

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(self.seed * self.num_samples + index)
        top, left = torch.randint(0, 10, (2,), generator=generator).tolist()
        mask = torch.zeros(16, 16)
        mask[top : top + 6, left : left + 6] = 1.0
        image = mask + 0.5 * torch.randn(16, 16, generator=generator)
        is_known = torch.rand(16, 16, generator=generator) < 0.8
        return {"image": image.unsqueeze(0), "mask": mask, "is_known": is_known}


def shapes(num_train: int, num_test: int) -> tuple[Shapes, Shapes]:
    """Return a data set, training and held-out."""
    return Shapes(num_train, seed=1), Shapes(num_test, seed=2)


def segmenter(width: int) -> nn.Module:
    """Return a model: images [n, 1, 16, 16] to logits [n, 1, 16, 16]."""
    layers = (nn.Conv2d(1, width, 5, padding=2), nn.ReLU(), nn.Conv2d(width, 1, 5, padding=2))
    return nn.Sequential(*layers)


def known_pixels(model: nn.Module, batch: dict[str, torch.Tensor]) -> Sums:
    """An objective: the loss of the known pixels; each sample has another number of them."""
    logits = model(batch["image"]).squeeze(1)
    is_known = batch["is_known"]
    losses = binary_cross_entropy_with_logits(logits, batch["mask"], reduction="none")
    is_right = (logits > 0) == (batch["mask"] > 0.5)
    return Sums(
        loss=(losses * is_known).sum(),
        num_items=is_known.sum(),  # a tensor: the kit adds it up over all ranks
        metrics={"accuracy": (is_right & is_known).sum()},
    )


class Counted(torch.utils.data.IterableDataset[dict[str, torch.Tensor]]):
    """A stream of the same samples: it has no length, but a position that can be saved."""

    def __init__(self, num_samples: int) -> None:
        self.samples, self.position = Shapes(num_samples, seed=1), 0

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        while self.position < len(self.samples):
            self.position += 1
            yield self.samples[self.position - 1]
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the sample that was read last."""
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after that sample."""
        self.position = state["position"]


def stream(num_samples: int, num_test: int) -> tuple[Counted, Shapes]:
    """Return a stream of training samples, which all ranks share, and held-out samples."""
    return Counted(num_samples), Shapes(num_test, seed=2)
