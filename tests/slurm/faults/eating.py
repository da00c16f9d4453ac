"""A model whose rank 1 runs out of memory: EATING is "WHAT ATTEMPTS", such as "kernel 1"."""

import os

import torch

from ..paced import Paced

CALL = 5  # of an attempt; the first is the throw-away pass
BLOCK_BYTES = 256 * 2**20


class Eating(Paced):
    """Paced; in the attempts that EATING names rank 1 allocates more memory than there is."""

    def __init__(self) -> None:
        super().__init__()
        self._what, *attempts = os.environ["EATING"].split()
        self._is_hungry = os.environ["RANK"] == "1" and os.environ["KIT_ATTEMPT"] in attempts
        self._calls = 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits [N, 10] of images [N, 1, H, W]."""
        self._calls += 1
        if self._is_hungry and self._calls == CALL:
            if self._what == "allocator":
                torch.empty(2**50, dtype=torch.uint8)
            blocks = []
            while True:  # until the kernel kills the rank
                blocks.append(b"x" * BLOCK_BYTES)
        return super().forward(images)
