"""Hashes of a model's weights and its optimizer: two runs are bitwise equal when they agree."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn


def weights_sha256(module: nn.Module) -> str:
    """Return the SHA-256 of names, types, shapes and bytes of all parameters and buffers."""
    return tensors_sha256(module.state_dict())


def tensors_sha256(state: Mapping[str, Any]) -> str:
    """Return the `weights_sha256` of a model with this `state_dict()`."""
    tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    return _sha256((name, tensors[name]) for name in sorted(tensors))


def optimizer_sha256(optimizer: torch.optim.Optimizer) -> str:
    """Return the SHA-256 of an optimizer's state: tensors like weights, other values as text.

    Without the options, because they follow from the spec and the step.
    """
    return _sha256(_leaves(optimizer.state_dict()["state"], ""))


def _sha256(leaves: Iterator[tuple[str, Any]]) -> str:
    digest = hashlib.sha256()
    for name, value in leaves:
        if not isinstance(value, torch.Tensor):
            digest.update(f"{name} {value!r}\n".encode())
            continue
        tensor = value.detach().cpu().contiguous()
        raw: Any = tensor.reshape(-1).view(torch.uint8).numpy()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(raw)
    return digest.hexdigest()


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield (path, leaf) of all leaves of nested containers, sorted by their keys as text."""
    if isinstance(value, (list, tuple)):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        yield path, value
        return
    for key in sorted(value, key=str):
        yield from _leaves(value[key], f"{path}.{key}")
