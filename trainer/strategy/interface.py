"""What each strategy can do, here as ddp does it, and which rows of a tensor each rank has."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from ..contract import Train
from ..errors import UserError
from ..process.context import DistributedContext


@dataclass(frozen=True)
class Sharding:
    """The division of tensors into `num_shards` contiguous parts along the first dimension.

    rank: this rank. Ranks i, i + num_shards, i + 2 num_shards ... have copies of part i, and rank i
    writes it to a checkpoint. One part: each rank has whole tensors.
    """

    num_shards: int
    rank: int

    def rows(self, length: int) -> tuple[int, int]:
        """Return the first row of this rank's part and the row after its last one.

        length: the rows of the whole tensor. The division is that of torch.chunk, which FSDP2
        uses: equal parts, a smaller last one, and then empty ones.
        """
        index, size = self.rank % self.num_shards, -(-length // self.num_shards)
        return min(index * size, length), min((index + 1) * size, length)


@dataclass(frozen=True)
class Rows:
    """This rank's rows of a tensor that is divided; `shape` is that of the whole tensor."""

    local: torch.Tensor
    shape: tuple[int, ...]


class Strategy:
    """How the ranks share model, gradients and optimizer. All ranks call every method.

    This class is "ddp": each rank has the whole model and the whole optimizer, and the gradients
    are averaged. One rank has the model without a wrapper.

    sharding: of the tensors that are divided; one part where none is.
    evaluates_together: whether a forward pass needs all ranks, also without gradients.
    """

    evaluates_together = False

    def __init__(self, train: Train, place: DistributedContext, device: torch.device) -> None:
        """Raises: UserError for a spec that does not fit the ranks."""
        self.sharding = Sharding(1, place.rank)
        self._train = train
        self._place = place
        self._device = device

    # What builds a model calls these, in this order.

    def create(self, create: Callable[[], nn.Module], max_bytes: int | None = None) -> nn.Module:
        """Return a new model, on the CPU.

        max_bytes: of parameters, above which a strategy may leave them without memory until `wrap`.
        """
        return create()

    def to_device(self, module: nn.Module) -> nn.Module:
        """Return the model on the device of this rank."""
        return module.to(self._device)

    def prepare(self, module: nn.Module) -> None:
        """Compile the model in place, as the spec says: before the ranks share it."""
        if self._train.compile:
            # torch.compile(module) would rename its parameters.
            module.forward = torch.compile(module.forward)

    def check(self, module: nn.Module) -> None:
        """Raise UserError for a model that the ranks cannot share as the spec says."""

    def wrap(self, module: nn.Module, is_overwritten: bool = False) -> nn.Module:
        """Return what the objective calls in training. May change the model in place.

        is_overwritten: whether a checkpoint replaces all initial weights.
        """
        if self._place.world_size == 1:
            return module
        train = self._train
        return DistributedDataParallel(
            module,
            device_ids=[self._device] if self._device.type == "cuda" else None,
            bucket_cap_mb=train.bucket_cap_mb,
            # A static graph finds them by itself.
            find_unused_parameters=train.find_unused_parameters and not train.static_graph,
            gradient_as_bucket_view=train.gradient_as_bucket_view,
            static_graph=train.static_graph,
        )

    def trained_parameters(self, module: nn.Module) -> list[tuple[str, nn.Parameter]]:
        """Return the parameters that this rank's optimizer updates, with their names.

        They are in the order of the model's: its parameters, or this rank's rows of them.
        """
        return [(name, each) for name, each in module.named_parameters() if each.requires_grad]

    def attach(self, optimizer: torch.optim.Optimizer) -> None:
        """Connect an optimizer of `trained_parameters` with the model, after a first pass."""

    # A step.

    def begin_step(self, module: nn.Module) -> None:
        """Do what is due before the first forward pass of a step."""

    def accumulate(self, wrapped: nn.Module, is_last: bool) -> AbstractContextManager[None]:
        """Return a context for the passes of a micro batch; the last one exchanges gradients.

        Raises: UserError.
        """
        if is_last or not isinstance(wrapped, DistributedDataParallel):
            return nullcontext()
        if self._train.static_graph:  # DDP crashes then, or reduces no gradients (torch 2.13)
            raise UserError("train.static_graph: DDP loses accumulated gradients: leave it out")
        return wrapped.no_sync()

    def gradients(self, parameters: Iterable[nn.Parameter]) -> list[torch.Tensor]:
        """Return what this rank has of the gradients of the model's parameters."""
        return [each.grad for each in parameters if each.grad is not None]

    def clip(self, parameters: Sequence[nn.Parameter], max_norm: float) -> None:
        """Scale the gradients of the step so that their norm over all ranks is at most this."""
        clip_grad_norm_(parameters, max_norm)

    def end_evaluation(self, module: nn.Module) -> None:
        """Do what is due after forward passes without a backward pass."""

    # Which of the tensors are divided. A checkpoint has whole tensors, by name.

    def part(self, value: Any, owner: nn.Parameter | None = None) -> Any:
        """Return this rank's `Rows` of a divided tensor, and any other value as it is.

        value: of the model's `state_dict()`; or of the optimizer's state for the parameter `owner`.
        The result shares its memory.
        """
        return value

    def whole(self, rows: Rows) -> torch.Tensor:
        """Return a whole tensor that is divided. All ranks call it, for the same tensors."""
        raise NotImplementedError
