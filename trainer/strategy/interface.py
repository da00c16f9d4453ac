"""What each strategy can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from .sharding import Rows, Sharding


class Strategy(ABC):
    """How the ranks share model, gradients and optimizer. All ranks call every method.

    sharding: of the tensors that are divided; one part where none is.
    divides_model: whether `wrap` divides the parameters of the model.
    evaluates_together: whether a forward pass needs all ranks, also without gradients.
    """

    sharding: Sharding
    divides_model = False
    evaluates_together = False

    @abstractmethod
    def wrap(self, module: nn.Module) -> nn.Module:
        """Return what the objective calls in training. May change the model in place."""

    def parameter_device(self, device: torch.device) -> torch.device:
        """Return where the parameters are that a rank on `device` holds."""
        return device

    @abstractmethod
    def accumulate(self, wrapped: nn.Module, is_last: bool) -> AbstractContextManager[None]:
        """Return a context for the passes of a micro batch; the last one exchanges gradients."""

    def begin_step(self, module: nn.Module) -> None:  # noqa: B027 (most have nothing to do)
        """Do what is due before the first forward pass of a step."""

    def gradients(self, parameters: Iterable[nn.Parameter]) -> list[torch.Tensor]:
        """Return what this rank has of the gradients of the model's parameters."""
        return [each.grad for each in parameters if each.grad is not None]

    def clip(self, parameters: Sequence[nn.Parameter], max_norm: float) -> None:
        """Scale the gradients of the step so that their norm over all ranks is at most this."""
        clip_grad_norm_(parameters, max_norm)

    def trained_parameters(self, module: nn.Module) -> list[tuple[str, nn.Parameter]]:
        """Return the parameters that this rank's optimizer updates, with their names.

        They are in the order of the model's: its parameters, or this rank's rows of them.
        """
        return [(name, each) for name, each in module.named_parameters() if each.requires_grad]

    def attach(self, optimizer: torch.optim.Optimizer) -> None:  # noqa: B027
        """Connect an optimizer of the parameters `trained` with the model, after a first pass."""

    def end_evaluation(self, module: nn.Module) -> None:  # noqa: B027
        """Do what is due after forward passes without a backward pass."""

    def describe(self) -> str:
        """Return what is divided into how many parts, for the log; "" where nothing is."""
        return ""

    # What follows says which of the tensors are divided. A checkpoint has whole tensors, by name.

    def part(self, value: torch.Tensor, owner: nn.Parameter | None = None) -> torch.Tensor | Rows:
        """Return this rank's rows of a divided tensor, and any other tensor as it is.

        value: of the model's `state_dict()`; or of the optimizer's state for the parameter `owner`.
        The result shares its memory.
        """
        return value

    def whole_shape(self, owner: nn.Parameter) -> tuple[int, ...] | None:
        """Return the shape of the whole tensor of one of `trained`; None where it is not divided.

        A tensor of the optimizer's state with this shape is divided like the parameter.
        """
        return None
