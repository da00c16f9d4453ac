"""A model that fails on one rank while the others are in a collective."""

import os

import torch


class Raising(torch.nn.Module):
    """A linear model; rank 1 fails at its third batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(30, 2)
        self.batches = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Logits [N, 2] of inputs [N, 30]."""
        self.batches += 1
        if self.batches == 3 and os.environ["RANK"] == "1":
            raise RuntimeError("out of cheese")
        logits: torch.Tensor = self.layer(inputs)
        return logits
