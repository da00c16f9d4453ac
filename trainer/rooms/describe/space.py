"""Whether the checkpoints of a run fit on its disk."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import torch
from torch import nn

from ...errors import log


def warn(checkpoints: Path, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Log a warning where the disk has no room for two more checkpoints.

    A save has the old and the new one on the disk.
    """
    size = _size(module, optimizer)
    with contextlib.suppress(OSError):  # a save will find it out
        free = shutil.disk_usage(checkpoints.parent).free
        if free < 2 * size:
            gib = f"{size / 2**30:.3g} GiB, and {free / 2**30:.3g} GiB are free"
            log(f"warning: the disk of {checkpoints} may become full: a checkpoint takes {gib}")


def _size(module: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Return the bytes of model and optimizer; less where the optimizer is not a known one."""
    moments = 2 if isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW)) else 0
    if isinstance(optimizer, torch.optim.SGD):
        moments = int(optimizer.defaults["momentum"] != 0)
    trained = [each for each in module.parameters() if each.requires_grad]
    values = [*module.parameters(), *module.buffers(), *moments * trained]
    return sum(value.numel() * value.element_size() for value in values)
