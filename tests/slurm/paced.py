"""A model that crawls as long as a file is there, so that a test meets the run where it wants."""

import os
import time
from pathlib import Path

import torch

from trainer.models import MiniResNet

SECONDS_PER_STEP = 1.0


class Paced(torch.nn.Module):
    """MiniResNet, with a pause before each batch while PACE_FILE exists."""

    def __init__(self) -> None:
        super().__init__()
        self.model = MiniResNet(in_channels=1, num_classes=10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits [N, 10] of images [N, 1, H, W]."""
        if Path(os.environ["PACE_FILE"]).exists():
            time.sleep(SECONDS_PER_STEP)
        logits: torch.Tensor = self.model(images)
        return logits
