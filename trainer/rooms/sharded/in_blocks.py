"""What all strategies of this room do: blocks, and models without memory at first."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from ...strategy.ddp import Ddp
from ...strategy.interface import Strategy
from . import blocks, fits, meta_init


class InBlocks(Strategy):
    """Treats the blocks of a model one by one; creates a large model on the meta device."""

    _is_on_meta = False

    def create(self, create: Callable[[], nn.Module], max_bytes: int | None = None) -> nn.Module:
        """Return a new model; above the limit its parameters are on the meta device."""
        module, self._is_on_meta = meta_init.build(create, max_bytes)
        return module

    def to_device(self, module: nn.Module) -> nn.Module:
        """Return the model on the device; parameters on the meta device stay there."""
        if not self._is_on_meta:
            return super().to_device(module)
        meta_init.move_buffers(module, self._device)
        return module

    def prepare(self, module: nn.Module) -> None:
        """Compile the model or its blocks and checkpoint their activations, as the spec says."""
        blocks.set_up(module, self._train)

    def check(self, module: nn.Module) -> None:
        """Raise UserError where the spec needs blocks, and for a model that does not divide."""
        fits.check(module, self._train, self.sharding.num_shards)

    def allocate(self, module: nn.Module, device: torch.device, is_overwritten: bool) -> None:
        """Give a model on the meta device this rank's part of memory and initial weights."""
        if self._is_on_meta:
            meta_init.allocate(module, device)
            if not is_overwritten:
                meta_init.fill(module, self, self._train.seed)


class DdpInBlocks(InBlocks, Ddp):
    """The strategy "ddp", with what this room adds."""

    def wrap(self, module: nn.Module, is_overwritten: bool = False) -> nn.Module:
        """Return the model under DDP."""
        self.allocate(module, self._device, is_overwritten)
        return super().wrap(module, is_overwritten)
