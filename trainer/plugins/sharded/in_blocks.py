"""What all strategies of this plugin do, and whether a model fits them."""

from collections.abc import Callable

import torch
from torch import nn

from ...contract import Train
from ...errors import UserError
from ...strategy.interface import Sharding, Strategy
from . import blocks, meta_init


class InBlocks(Strategy):
    """Treats the blocks of a model one by one; creates a large model on the meta device.

    This class is the plugin's "ddp".
    """

    _is_on_meta = False

    def create(self, create: Callable[[], nn.Module], max_bytes: int | None = None) -> nn.Module:
        """Return a new model; above the limit its parameters are on the meta device."""
        module, self._is_on_meta = meta_init.build(create, max_bytes)
        return module

    def to_device(self, module: nn.Module) -> nn.Module:
        """Return the model on the device; parameters on the meta device stay there."""
        if not self._is_on_meta:
            return super().to_device(module)
        for owner in module.modules():
            for key, buffer in owner._buffers.items():
                owner._buffers[key] = None if buffer is None else buffer.to(self._device)
        return module

    def prepare(self, module: nn.Module) -> None:
        """Compile the model or its blocks and checkpoint their activations, as the spec says."""
        blocks.set_up(module, self._train)

    def check(self, module: nn.Module) -> None:
        """Raise UserError where the model lacks blocks, or cannot be divided into the shards."""
        train, num_shards = self._train, self.sharding.num_shards
        block_list = blocks.find(module, train.shard_modules)
        if not block_list and (train.activation_checkpointing or train.compile == "blocks"):
            key = "activation_checkpointing" if train.activation_checkpointing else "compile blocks"
            lists = f"no nn.ModuleList or nn.Sequential of train.model {train.model}"
            what = f"train.{key} needs blocks, but {lists} has two children of one class"
            raise UserError(what, "name classes in train.shard_modules")
        if num_shards == 1:
            return
        _check_groups(module, block_list, train)
        lengths = [len(each) for each in module.parameters() if each.requires_grad and each.ndim]
        last = Sharding(num_shards, num_shards - 1)
        if not any(last.rows(length)[0] < length for length in lengths):
            what = f"{num_shards} shards are too many for train.model {train.model}: the longest "
            what += f"parameter has {max(lengths, default=0)} rows, and a rank would get none"
            hint = "take fewer ranks, ddp, or hsdp with a smaller train.shard_size"
            raise UserError(f"train.strategy {train.strategy}: {what}", hint)

    def wrap(self, module: nn.Module, is_overwritten: bool = False) -> nn.Module:
        self.allocate(module, self._device, is_overwritten)
        return super().wrap(module, is_overwritten)

    def allocate(self, module: nn.Module, device: torch.device, is_overwritten: bool) -> None:
        """Give a model on the meta device this rank's part of memory and initial weights."""
        if self._is_on_meta:
            meta_init.allocate(module, device)
            if not is_overwritten:
                meta_init.fill(module, self, self._train.seed)


def _check_groups(module: nn.Module, blocks: list[nn.Module], train: Train) -> None:
    """Raise UserError where blocks share a parameter: FSDP2 gathers it for one of them only."""
    names = {each: name for name, each in module.named_modules()}
    for block in blocks:
        inside = {id(each) for each in block.modules()}
        own = {id(each) for each in block.parameters()}
        for each in module.modules():
            shared = own & {id(value) for value in each._parameters.values()}
            if shared and id(each) not in inside:
                what = f"{names[block]} is a block and shares a parameter with {names[each]}"
                what = f"train.strategy {train.strategy}: {what}, which is outside of it"
                hint = "name the class of a module with both in train.shard_modules, or take ddp"
                raise UserError(what, hint)
