"""Copies of a training's state in host memory; the training continues on the originals."""

from __future__ import annotations

from typing import Any

import torch

from slurm_job_kit.trainer.data.sources import PLAIN
from slurm_job_kit.trainer.errors import UserError


class Staging:
    """Host memory for one copy of the state at a time; each save uses the same memory.

    It is pinned for tensors on a GPU, so that the host does not wait for the copy.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, torch.Tensor] = {}

    def take(self, state: dict[str, Any]) -> tuple[dict[str, Any], torch.cuda.Event | None]:
        """Copy `state` to the host; return the copy and an event (None on a CPU).

        The copy is complete when the event has happened.

        Raises: UserError if `state` holds anything but tensors, plain values and containers.
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
        raise UserError(
            f"{path} is a {type(value).__name__}, which no checkpoint can hold: make it a tensor, "
            "a number or a text"
        )

    def _stage(self, tensor: torch.Tensor, path: str) -> torch.Tensor:
        buffer = self._buffers.get(path)
        if buffer is None or (buffer.dtype, buffer.shape) != (tensor.dtype, tensor.shape):
            # `empty_like` also keeps the memory format, such as channels_last.
            buffer = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
            self._buffers[path] = buffer
        return buffer.copy_(tensor, non_blocking=True)


def first_not_finite(tensors: dict[str, Any]) -> str | None:
    """Return the name of the first tensor that holds a NaN or an infinity, or None."""
    for name, tensor in tensors.items():
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and tensor.numel():
            # Minimum and maximum are NaN if any value is. `isfinite` takes 50 times as long
            # (torch 2.13, CPU).
            extremes = torch.stack(torch.aminmax(tensor))
            if not extremes.isfinite().all():
                return name
    return None
