"""What an optimizer updates where each rank has its own rows of each parameter only."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from ...strategy.sharding import Rows


@torch.no_grad()
def local(value: torch.Tensor) -> torch.Tensor:
    """Return this rank's rows of a DTensor; they share its memory."""
    assert isinstance(value, DTensor)
    return value.to_local()


class OptimizerRows:
    """This rank's rows of the trained parameters of a model, as parameters of an optimizer.

    They are plain tensors in the model's memory, so every optimizer works on them that treats each
    element alone, and its fused kernels do, too: torch 2.13 has no fused SGD for a DTensor.
    """

    def __init__(self) -> None:
        self._named: list[tuple[str, nn.Parameter, nn.Parameter]] = []  # name, whole, rows
        self._shapes: dict[int, tuple[int, ...]] = {}  # of the wholes, by the id of their rows

    def trained_parameters(self, module: nn.Module) -> list[tuple[str, nn.Parameter]]:
        """Return the rows with the names of their parameters, each time the same ones."""
        if not self._named:
            self._named = [
                (name, whole, nn.Parameter(local(whole.detach())))
                for name, whole in module.named_parameters()
                if whole.requires_grad
            ]
            self._shapes = {id(rows): tuple(whole.shape) for _, whole, rows in self._named}
        return [(name, rows) for name, _, rows in self._named]

    def attach(self, optimizer: torch.optim.Optimizer) -> None:
        """Give the optimizer its gradients before each step."""

        def begin(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            for _, whole, rows in self._named:
                rows.data = local(whole.detach())  # a load may have replaced the memory
                rows.grad = None if whole.grad is None else local(whole.grad)

        def end(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            for _, _, rows in self._named:
                rows.grad = None

        optimizer.register_step_pre_hook(begin)
        optimizer.register_step_post_hook(end)

    def part(self, value: torch.Tensor, owner: nn.Parameter) -> torch.Tensor | Rows:
        """Return a tensor of the optimizer's state as a part if it has the shape of the rows."""
        shape = self.whole_shape(owner)
        return value if shape is None or value.shape != owner.shape else Rows(value, shape)

    def whole_shape(self, owner: nn.Parameter) -> tuple[int, ...] | None:
        """Return the shape of the parameter of some rows; None for one without a dimension."""
        return self._shapes.get(id(owner)) or None
