"""Reads this rank's part of a checkpoint, where model and optimizer are divided."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ...checkpoint import outline
from ...checkpoint.outline import StoredTensor
from ...checkpoint.saved_state import model_parts, parameters_of
from ...contract import Contents
from ...strategy.interface import Strategy
from ...strategy.sharding import Rows


class PartReader:
    """Reads the tensors of a checkpoint into the memory of this rank.

    contents: the open checkpoint.
    Every method raises DamageError or OSError where the files cannot be read.
    """

    def __init__(self, strategy: Strategy, contents: Contents) -> None:
        self._strategy = strategy
        self._contents = contents

    def fill_model(self, module: nn.Module, saved: Mapping[str, Any]) -> None:
        """Fill parameters and buffers. saved: the `state_dict()`, as `outline.read` returns it."""
        own, others = self._own_memory(module), {}
        for name, value in saved.items():
            if name in own and isinstance(value, StoredTensor):
                self._fill(own[name], value)
            else:
                others[name] = outline.whole(value, self._contents)
        if others:
            module.load_state_dict(others, strict=False)

    def _own_memory(self, module: nn.Module) -> dict[str, torch.Tensor | Rows]:
        """Return the entries of `state_dict()` that are the memory of parameters and buffers.

        Not what get_extra_state() or a hook returns: the module has to load that by itself.
        """
        named: dict[str, torch.Tensor] = dict(module.named_buffers(remove_duplicate=False))
        named.update(module.named_parameters(remove_duplicate=False))
        held = {name: self._strategy.part(value.detach()) for name, value in named.items()}
        return {
            name: value
            for name, value in model_parts(module, self._strategy).items()
            if name in held and _address(value) == _address(held[name])
        }

    def optimizer_state(
        self, optimizer: torch.optim.Optimizer, saved: Mapping[int, Mapping[str, Any]]
    ) -> dict[int, dict[str, Any]]:
        """Return what this rank's optimizer keeps. saved: for each parameter the whole state."""
        owners = parameters_of(optimizer)
        return {
            index: {key: self._of_optimizer(value, owners[index]) for key, value in values.items()}
            for index, values in saved.items()
        }

    def _of_optimizer(self, value: Any, owner: nn.Parameter) -> Any:
        rows = self._strategy.part(owner.detach(), owner)
        is_tensor = isinstance(value, StoredTensor)
        if not is_tensor or not isinstance(rows, Rows) or value.shape != rows.shape:
            return outline.whole(value, self._contents)
        own = Rows(torch.empty_like(rows.local, dtype=value.dtype), rows.shape)
        self._fill(own, value)
        return own.local

    def _fill(self, target: torch.Tensor | Rows, value: StoredTensor) -> None:
        first, tensor = 0, target
        if isinstance(target, Rows):
            row = math.prod(target.shape[1:])
            first = self._strategy.sharding.rows(target.shape[0])[0] * row
            tensor = target.local
        assert isinstance(tensor, torch.Tensor)
        value.read_into(self._contents, first, tensor)


def _address(value: Any) -> int | None:
    tensor = value.local if isinstance(value, Rows) else value
    return tensor.data_ptr() if isinstance(tensor, torch.Tensor) else None
