"""The paced model and its data set; each breaks in one rank at a test's request."""

import os
import time
from pathlib import Path
from typing import Any

import torch

from slurm_job_kit.jobs import shared_files
from slurm_job_kit.trainer.data.sources import Samples
from tests import parts

from ..paced import Paced

TROUBLE = "TROUBLE_FOLDER"
PASS_S = 0.3


class Broken(Paced):
    """Paced; in training a rank does what TROUBLE_FOLDER/<rank> holds: `loop` (once) or `raise`."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits [N, 10] of images [N, 1, H, W]."""
        trouble = Path(os.environ.get(TROUBLE, "/nowhere"), os.environ["RANK"])
        if self.training and shared_files.exists(trouble):
            if trouble.read_text() == "raise":
                raise RuntimeError("out of cheese")
            trouble.unlink()
            loop_for_ever()
        return super().forward(images)


def images() -> tuple[Samples, Samples]:
    """The images of tests.parts; a rank loops here once if TROUBLE_FOLDER/<rank> exists."""
    trouble = Path(os.environ.get(TROUBLE, "/nowhere"), os.environ["RANK"])
    if shared_files.exists(trouble):
        trouble.unlink()
        loop_for_ever()
    return parts.images()


def loop_for_ever() -> None:
    """Never return."""
    while True:
        pass


class Phased(torch.nn.Module):
    """Paced; slow in both passes while PACE_FILE exists; PHASE_FILE.<rank> names the pass."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Paced().model
        fsync = os.fsync

        def slow_fsync(fd: Any) -> None:
            fsync(fd)
            if shared_files.exists(Path(os.environ.get("PACE_FILE", "/nowhere"))):
                time.sleep(PASS_S)

        os.fsync = slow_fsync

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits [N, 10] of images [N, 1, H, W]."""
        enter("forward" if self.training else "evaluation")
        logits: torch.Tensor = self.model(images)
        if logits.requires_grad:
            logits.register_hook(lambda _: enter("backward"))
        return logits


def enter(phase: str) -> None:
    """Write the name of the pass to the phase file, then pause."""
    if shared_files.exists(Path(os.environ.get("PACE_FILE", "/nowhere"))):
        Path(f"{os.environ['PHASE_FILE']}.{os.environ['RANK']}").write_text(phase)
        time.sleep(PASS_S)
