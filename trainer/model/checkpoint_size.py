"""How many bytes a checkpoint of a model and its optimizer has, before there is one."""

from __future__ import annotations

import torch
from torch import nn


def estimate(module: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Return the size of model and optimizer state; less where the optimizer is not a known one."""
    return of_model(module) + _state_size(module, optimizer)


def of_model(module: nn.Module) -> int:
    """Return the size of parameters and buffers, on whatever devices and shards they are."""
    values = [*module.parameters(), *module.buffers()]
    return sum(value.numel() * value.element_size() for value in values)


def _state_size(module: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    trained = [value for value in module.parameters() if value.requires_grad]
    size = sum(value.numel() * value.element_size() for value in trained)
    if isinstance(optimizer, torch.optim.SGD):
        return size if optimizer.defaults["momentum"] else 0
    return 2 * size if isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW)) else 0
