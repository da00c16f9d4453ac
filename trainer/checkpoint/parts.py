"""Loads a checkpoint where model or optimizer are divided: each rank reads what it needs."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch

from ..contract import Contents
from ..model.replica import Replica
from ..strategy.sharding import Rows
from . import outline
from .outline import StoredTensor
from .saved_state import (
    SavedState,
    TrainState,
    model_parts,
    parameters_of,
)


class PartReader:
    """Reads the tensors of a saved state into the memory of this rank.

    contents: the open checkpoint.
    Every method raises DamageError or OSError where the files cannot be read.
    """

    def __init__(self, replica: Replica, contents: Contents) -> None:
        self._replica = replica
        self._contents = contents

    def read(self, saved: SavedState) -> SavedState:
        """Fill the model; return the rest of the state, with this rank's part of the tensors."""
        self._fill_model(saved.model)
        states = saved.optimizer["state"].items()
        owners = parameters_of(self._replica.optimizer)
        state = {
            index: {key: self._of_optimizer(value, owners[index]) for key, value in values.items()}
            for index, values in states
        }
        return dataclasses.replace(
            saved,
            optimizer={**outline.map_values(saved.optimizer, self._whole_or_none), "state": state},
            # A stream's position may have tensors, too.
            state=TrainState(**self._whole(vars(saved.state))),
            scaler=self._whole(saved.scaler),
        )

    def _fill_model(self, saved: dict[str, Any]) -> None:
        own, others = self._own_memory(), {}
        for name, value in saved.items():
            if name in own and isinstance(value, StoredTensor):
                self._fill(own[name], value)
            else:
                others[name] = self._whole(value)
        if others:
            self._replica.module.load_state_dict(others, strict=False)

    def _own_memory(self) -> dict[str, torch.Tensor | Rows]:
        """Return the entries of `state_dict()` that are the memory of parameters and buffers.

        Not what get_extra_state() or a hook returns: the module has to load that by itself.
        """
        module, part = self._replica.module, self._replica.strategy.part
        named: dict[str, torch.Tensor] = dict(module.named_buffers(remove_duplicate=False))
        named.update(module.named_parameters(remove_duplicate=False))
        held = {name: part(value.detach()) for name, value in named.items()}
        return {
            name: value
            for name, value in model_parts(self._replica).items()
            if name in held and _address(value) == _address(held[name])
        }

    def _of_optimizer(self, value: Any, owner: torch.nn.Parameter) -> Any:
        """Return what this rank's optimizer keeps of a value of the state of a parameter."""
        strategy = self._replica.strategy
        shape = strategy.whole_shape(owner)
        is_tensor = isinstance(value, StoredTensor)
        if not is_tensor or shape is None or value.shape != tuple(shape):
            return self._whole(value)
        rows = strategy.part(owner.detach(), owner)
        assert isinstance(rows, Rows)
        own = Rows(torch.empty_like(rows.local, dtype=value.dtype), tuple(shape))
        self._fill(own, value)
        return own.local

    def _fill(self, target: torch.Tensor | Rows, value: StoredTensor) -> None:
        first, tensor = 0, target
        if isinstance(target, Rows):
            row = math.prod(target.shape[1:])
            first = self._replica.strategy.sharding.rows(target.shape[0])[0] * row
            tensor = target.local
        assert isinstance(tensor, torch.Tensor)
        value.read_into(self._contents, first, tensor)

    def _whole(self, value: Any) -> Any:
        return outline.whole(value, self._contents)

    def _whole_or_none(self, value: Any) -> Any:
        """Return a tensor of the optimizer's options; its state is read apart."""
        return None if isinstance(value, StoredTensor) else value


def _address(value: Any) -> int | None:
    tensor = value.local if isinstance(value, Rows) else value
    return tensor.data_ptr() if isinstance(tensor, torch.Tensor) else None
