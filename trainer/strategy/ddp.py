"""DDP: each rank has the whole model and the whole optimizer; the gradients are averaged."""

from contextlib import AbstractContextManager, nullcontext

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..errors import UserError
from .interface import Strategy


class Ddp(Strategy):
    """The strategy "ddp"; one rank has the model without a wrapper."""

    def wrap(self, module: nn.Module, is_overwritten: bool = False) -> nn.Module:
        """Return the model under DDP with the options of the spec.

        A static graph finds unused parameters by itself.
        """
        if self._place.world_size == 1:
            return module
        train = self._train
        return DistributedDataParallel(
            module,
            device_ids=[self._device] if self._device.type == "cuda" else None,
            bucket_cap_mb=train.bucket_cap_mb,
            find_unused_parameters=train.find_unused_parameters and not train.static_graph,
            gradient_as_bucket_view=train.gradient_as_bucket_view,
            static_graph=train.static_graph,
        )

    def accumulate(self, wrapped: nn.Module, is_last: bool) -> AbstractContextManager[None]:
        """Return DDP's `no_sync` for all micro batches but the last one. Raises: UserError."""
        if is_last or not isinstance(wrapped, DistributedDataParallel):
            return nullcontext()
        if self._train.static_graph:  # DDP crashes then, or reduces no gradients (torch 2.13)
            raise UserError("train.static_graph: DDP loses accumulated gradients: leave it out")
        return wrapped.no_sync()
