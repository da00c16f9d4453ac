"""Copies of a training's state in host memory; the training continues on the originals."""

import functools
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import torch

from ..data.sources import check_plain
from ..strategy.interface import Rows
from . import outline


class Staging:
    """Host memory for one copy of the state at a time; each save uses the same memory.

    It is pinned for tensors on a GPU, so that the host does not wait for the copy.
    """

    def __init__(self) -> None:
        self._buffers: dict[int, torch.Tensor] = {}  # by their place in the order of the state
        self._allocation: threading.Thread | None = None

    def allocate(self, state: dict[str, Any]) -> None:
        """Allocate the memory for copies of `state` in a thread, so that the first is as fast."""
        tensors = [outline.local(leaf).detach() for _, leaf in outline.leaves(state)]
        self._allocation = threading.Thread(target=self._allocate, args=(tensors,), daemon=True)
        self._allocation.start()

    def _allocate(self, tensors: list[torch.Tensor]) -> None:
        for place, tensor in enumerate(tensors):
            if not tensor.is_meta:  # the kernel gives the pages at the first write
                self._buffers[place] = _buffer_for(tensor).zero_()

    def take(self, state: dict[str, Any]) -> tuple[dict[str, Any], torch.cuda.Event | None]:
        """Copy `state` to the host; return the copy, and the event of its completion on a GPU."""
        if self._allocation is not None:
            self._allocation.join()
            self._allocation = None
        copy = outline.map_values(state, functools.partial(self._stage, itertools.count()))
        event = None
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        return copy, event

    def _stage(self, places: Iterator[int], value: Any) -> Any:
        if isinstance(value, Rows):
            return Rows(self._stage(places, value.local), value.shape)
        if not isinstance(value, torch.Tensor):
            check_plain("the state of model or optimizer", value)  # one may get it in a step
            return value
        place, tensor = next(places), value.detach()
        if tensor.is_meta:  # another rank writes it
            return tensor
        buffer = self._buffers.get(place)
        if buffer is None or (buffer.dtype, buffer.shape) != (tensor.dtype, tensor.shape):
            buffer = self._buffers[place] = _buffer_for(tensor)
        return buffer.copy_(tensor, non_blocking=True)


def _buffer_for(tensor: torch.Tensor) -> torch.Tensor:
    # `empty_like` also keeps the memory format, such as channels_last.
    return torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)


def first_not_finite(tensors: dict[str, Any]) -> str | None:
    """Return the name of the first tensor that holds a NaN or an infinity, or None."""
    for name, value in tensors.items():
        tensor = outline.local(value)
        if tensor.is_floating_point() and tensor.numel() and not tensor.is_meta:
            # Minimum and maximum are NaN if any value is. `isfinite` takes 50 times as long
            # (torch 2.13, CPU).
            extremes = torch.stack(torch.aminmax(tensor))
            if not extremes.isfinite().all():
                return name
    return None
