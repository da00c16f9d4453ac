"""One hash for a model's weights: two runs are bitwise equal when it agrees."""

from __future__ import annotations

import hashlib

import torch
from torch import nn


def weights_sha256(module: nn.Module) -> str:
    """SHA-256 over names, types, shapes and raw bytes of parameters and buffers, by name."""
    digest = hashlib.sha256()
    state = module.state_dict()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()
