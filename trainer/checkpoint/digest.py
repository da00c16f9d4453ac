"""Hashes of a model's weights and its optimizer: two runs are bitwise equal when they agree."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from ..model.replica import Replica
from ..strategy.interface import Rows
from .saved_state import model_parts, optimizer_parts

Whole = Callable[[Rows], torch.Tensor]  # a divided tensor, put together


def weights_sha256(replica: Replica) -> str:
    """Return the SHA-256 of names, types, shapes and bytes of all parameters and buffers.

    All ranks call it where tensors are divided: one after the other is put together.
    """
    return tensors_sha256(model_parts(replica.module, replica.strategy), replica.strategy.whole)


def tensors_sha256(state: Mapping[str, Any], whole: Whole | None = None) -> str:
    """Return the `weights_sha256` of a model with this `state_dict()`."""
    kinds = (torch.Tensor, Rows)
    tensors = {name: value for name, value in state.items() if isinstance(value, kinds)}
    return _sha256(((name, tensors[name]) for name in sorted(tensors)), whole)


def optimizer_sha256(replica: Replica) -> str:
    """Return the SHA-256 of an optimizer's state: tensors like weights, other values as text.

    Without the options, because they follow from the spec and the step. All ranks call it where
    tensors are divided.
    """
    return _sha256(_leaves(optimizer_parts(replica)["state"], ""), replica.strategy.whole)


def _sha256(leaves: Iterator[tuple[str, Any]], whole: Whole | None) -> str:
    digest = hashlib.sha256()
    for name, value in leaves:
        if isinstance(value, Rows):
            assert whole is not None
            value = whole(value)
        if isinstance(value, torch.Tensor):
            update(digest, name, value)
        else:
            digest.update(f"{name} {value!r}\n".encode())
    return digest.hexdigest()


def update(digest: hashlib._Hash, name: str, value: torch.Tensor) -> None:
    """Add a tensor to a digest; all of a model, sorted by name, give its `weights_sha256`."""
    tensor = value.detach().cpu().contiguous()
    raw: Any = tensor.reshape(-1).view(torch.uint8).numpy()
    digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
    digest.update(raw)


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield (path, leaf) of all leaves of nested containers, sorted by their keys as text."""
    if isinstance(value, (list, tuple)):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        yield path, value
        return
    for key in sorted(value, key=str):
        yield from _leaves(value[key], f"{path}.{key}")
