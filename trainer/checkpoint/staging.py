"""Copies of a training's state in host memory, which the training cannot change any more."""

from __future__ import annotations

from typing import Any

import torch

PLAIN = (str, int, float, bool, type(None))


class Staging:
    """Memory for one snapshot at a time, allocated by the first one and used again by the next.

    Pinned where tensors come from a GPU, so that they are copied while the host goes on.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, torch.Tensor] = {}

    def take(self, state: dict[str, Any]) -> tuple[dict[str, Any], torch.cuda.Event | None]:
        """A copy of `state` on the host, whole as soon as the event (None on a CPU) has happened.

        Raises: TypeError if there is anything but tensors, plain values and containers in it.
        """
        copy = self._copy(state, "state")
        event = None
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        return copy, event

    def _copy(self, value: Any, path: str) -> Any:
        if isinstance(value, torch.Tensor):
            return self._stage(value.detach(), path)
        if isinstance(value, dict):
            return {key: self._copy(item, f"{path}[{key!r}]") for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            copies = [self._copy(item, f"{path}[{index}]") for index, item in enumerate(value)]
            return tuple(copies) if isinstance(value, tuple) else copies
        if type(value) in PLAIN:
            return value
        raise TypeError(f"{path} is a {type(value).__name__}, which no checkpoint can hold")

    def _stage(self, tensor: torch.Tensor, path: str) -> torch.Tensor:
        buffer = self._buffers.get(path)
        if buffer is None or (buffer.dtype, buffer.shape) != (tensor.dtype, tensor.shape):
            # Of the same memory format, too.
            buffer = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
            self._buffers[path] = buffer
        return buffer.copy_(tensor, non_blocking=True)


def is_plain(value: Any) -> bool:
    """Whether there is nothing but tensors, plain values and their containers in it."""
    if isinstance(value, dict):
        return all(type(key) in PLAIN and is_plain(item) for key, item in value.items())
    if type(value) in (list, tuple):
        return all(map(is_plain, value))
    return type(value) in (*PLAIN, torch.Tensor)


def first_not_finite(tensors: dict[str, Any]) -> str | None:
    """The name of the first tensor with a NaN or an infinity in it, or None."""
    for name, tensor in tensors.items():
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and tensor.numel():
            # Both pass a NaN on. `isfinite` would take 50 times as long (torch 2.13, CPU).
            extremes = torch.stack(torch.aminmax(tensor))
            if not extremes.isfinite().all():
                return name
    return None
