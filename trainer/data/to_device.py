"""Moves a batch to the device of this rank and transforms it there."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..contract import Train
from ..errors import UserError
from ..parts import parts
from ..process.run_handle import RankContext
from ..seeds import SampleRandom
from ..user_code import call, load, user_code
from .sources import BYTE_SCALE, Batch, RawBatch, check_length, is_pair

# (inputs float32 [n, ...], the samples' random numbers, or None in evaluation) -> inputs. With an
# attribute takes_batch that is true the first argument and the result are a whole batch; with
# takes_bytes uint8 inputs are not scaled to float32 before.
Transform = Callable[[Any, SampleRandom | None], Any]


def create_transform(train: Train) -> Transform | None:
    """Return the transform of `train.transform`; None for no transform. Raises: UserError."""
    if (name := train.transform) is None:
        return None
    function = load("train.transform", name, parts("transform"))
    transform: Transform = call("train.transform", function, train.transform_args)
    return transform


class ToDevice:
    """Raw batches as the objective gets them: on the device, scaled and transformed.

    Of a pair (inputs, targets) the inputs are transformed, and uint8 inputs become float32 from 0
    to 1.
    """

    def __init__(self, transform: Transform | None, context: RankContext) -> None:
        self._device = context.device
        self._transform = transform
        self._name = context.train.transform or ""
        self._is_channels_last = context.train.channels_last
        self._takes_batch = getattr(transform, "takes_batch", False)
        self._takes_bytes = getattr(transform, "takes_bytes", False)

    def __call__(self, raw: RawBatch, rng_key: tuple[int, int] | None) -> Batch:
        """Return the batch on the device.

        rng_key: (seed, step) of the transform's random numbers; None in evaluation.
        """
        content = move(raw.content, self._device)
        random = None
        if self._transform is not None and rng_key is not None:
            random = SampleRandom(*rng_key, on_device(raw.indices, self._device))
        if self._takes_batch:
            assert self._transform is not None
            with user_code("train.transform", self._name):
                return self._transform(content, random)
        if not is_pair(content):
            if self._transform is not None:
                what = "gets the inputs of a pair (inputs, targets), but train.dataset returns a "
                what = f"train.transform {self._name} {what}{type(content).__name__}"
                hint = "give the transform an attribute takes_batch = True to get the whole batch"
                raise UserError(what, hint)
            return content
        inputs, targets = content
        if inputs.dtype == torch.uint8 and not self._takes_bytes:
            inputs = inputs.float().mul_(BYTE_SCALE)
        if self._transform is not None:
            num_inputs = len(inputs)
            with user_code("train.transform", self._name):
                inputs = self._transform(inputs, random)
            check_length(f"train.transform {self._name}", inputs, num_inputs)
        if self._is_channels_last and inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        return inputs, targets


def move(content: Any, device: torch.device) -> Any:
    """Return a batch of any structure with its tensors on a device.

    Objects with a method `to`, such as a PackedSequence, are moved by it.
    """
    if is_pair(content) and isinstance(content[1], torch.Tensor):  # without the cost of a tree
        return on_device(content[0], device), on_device(content[1], device)

    def moved(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return on_device(value, device)
        return value.to(device) if hasattr(value, "to") else value

    return pytree.tree_map(moved, content, is_leaf=lambda value: hasattr(value, "to"))


def on_device(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return the same values on a device; the host does not wait for a copy to a GPU."""
    if device.type == "cuda" and values.device.type == "cpu":
        pinned = values if values.is_pinned() else values.pin_memory()
        return pinned.to(device, non_blocking=True)
    return values.to(device)
