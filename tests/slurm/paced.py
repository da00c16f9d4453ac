"""A model that is slow while a file exists, so that a test can act at a certain step."""

import os
import time
from pathlib import Path

import torch

from tests.parts import Convolutions

SECONDS_PER_STEP = 0.5
_LOOK_S = 0.05


class Paced(torch.nn.Module):
    """Two convolutions, with a pause before each batch while PACE_FILE exists.

    The file may hold the seconds of the pause. The pause ends as soon as the file is deleted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.model = Convolutions()
        self._pace_file = Path(os.environ["PACE_FILE"])

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        began = time.monotonic()
        while (pause_s := self._pause_s()) and time.monotonic() - began < pause_s:
            time.sleep(min(_LOOK_S, pause_s))
        logits: torch.Tensor = self.model(images)
        return logits

    def _pause_s(self) -> float:
        try:
            return float(self._pace_file.read_text() or SECONDS_PER_STEP)
        except FileNotFoundError:
            return 0.0
