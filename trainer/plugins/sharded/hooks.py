"""The strategies of this plugin, and how their states are saved."""

from typing import Any

import torch

from ...contract import Train
from ...process.context import DistributedContext
from ...strategy.interface import Strategy
from .in_blocks import InBlocks


def parts(key: str) -> dict[str, Any]:
    """Return the strategies, with a ddp that can treat blocks one by one, or their checkpoints."""
    if key == "checkpoints":
        from .checkpoints import DividedCheckpoints

        return {"fsdp": DividedCheckpoints, "hsdp": DividedCheckpoints}
    return {"ddp": InBlocks, "fsdp": _fsdp, "hsdp": _fsdp} if key == "strategy" else {}


def _fsdp(train: Train, place: DistributedContext, device: torch.device) -> Strategy:
    # Its import takes 0.6 s, which ddp need not wait for.
    from .fsdp import Fsdp

    return Fsdp(train, place, device)
