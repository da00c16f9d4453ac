"""The paced model in a run that is held up where a test wants it: in its start, or by its disk."""

import os
import threading
import time
from pathlib import Path

import torch

from ..paced import Paced

_LOOK_S = 0.05
_WRITER = "checkpoint-writer"  # the thread's name; the main thread's own files are not held up


def wait_while(path: Path) -> None:
    """Return when the file is not there."""
    while path.exists():
        time.sleep(_LOOK_S)


class HeldUp(torch.nn.Module):
    """Paced, not built while START_FILE exists; no checkpoint gets durable while DISK_FILE does.

    The disk that stands still is made of os.fsync, so a save is in flight as long as one likes.
    """

    def __init__(self) -> None:
        super().__init__()
        wait_while(Path(os.environ.get("START_FILE", "/nowhere")))
        self.model = Paced()
        disk, fsync = Path(os.environ.get("DISK_FILE", "/nowhere")), os.fsync

        def slow_fsync(fd: int) -> None:
            if threading.current_thread().name.startswith(_WRITER):
                wait_while(disk)
            fsync(fd)

        os.fsync = slow_fsync

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits [N, 10] of images [N, 1, H, W]."""
        logits: torch.Tensor = self.model(images)
        return logits
