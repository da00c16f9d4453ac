"""Broadcasts a saved state from rank 0, tensor by tensor: only rank 0 reads files."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from slurm_job_kit.trainer.process.context import broadcast_bytes

# One broadcast; on a GPU, which also holds the model, it is one buffer.
BUCKET_BYTES = 64 * 2**20
# Smaller tensors are copied into a bucket. Larger ones on a CPU are sent from and to their place.
SMALL_BYTES = 2**20


def share(value: Any, device: torch.device) -> Any:
    """Return rank 0's containers of tensors and plain values on every rank, or None.

    The tensors of the result are on the CPU; rank 0 gets its own `value` back. The `value` of the
    other ranks is ignored.
    """
    if dist.get_world_size() == 1:
        return value
    is_first, outline = dist.get_rank() == 0, io.BytesIO()
    if is_first and value is not None:
        torch.save(_map(value, lambda each: _empty(each, "meta")), outline)
    outline = io.BytesIO(broadcast_bytes(outline.getvalue(), device))
    if not outline.getbuffer():
        return None
    if not is_first:
        found = torch.load(outline, weights_only=True)
        value = _map(found, lambda each: _empty(each, "cpu"))
    for bucket in _buckets(value, SMALL_BYTES if device.type == "cpu" else BUCKET_BYTES):
        _broadcast(bucket, device)
    return value


def _map(value: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return the containers with `function` of each tensor in place of it."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: _map(item, function) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_map(item, function) for item in value)
    return value


def _empty(tensor: torch.Tensor, device: str) -> torch.Tensor:
    size, stride = tensor.size(), tensor.stride()
    return torch.empty_strided(size, stride, dtype=tensor.dtype, device=device)


def _buckets(value: Any, max_bytes: int) -> Iterator[list[torch.Tensor]]:
    """Yield the memory of all tensors, uint8 [n] each, in lists of at most `max_bytes`.

    A larger tensor is alone in its list, in parts of at most BUCKET_BYTES.
    """
    bucket: list[torch.Tensor] = []
    size = 0
    for part in _parts(value):
        if bucket and size + len(part) > max_bytes:
            yield bucket
            bucket, size = [], 0
        bucket.append(part)
        size += len(part)
    if bucket:
        yield bucket


def _parts(value: Any) -> Iterator[torch.Tensor]:
    """Yield the memory of each tensor, uint8 [n], in parts of at most BUCKET_BYTES."""
    if isinstance(value, torch.Tensor):
        # The saved tensors have no gaps, but perhaps another order of dimensions in memory.
        memory = value.as_strided((value.numel(),), (1,)).view(torch.uint8)
        yield from torch.split(memory, BUCKET_BYTES)
    elif isinstance(value, (dict, list, tuple)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _parts(item)


def _broadcast(bucket: list[torch.Tensor], device: torch.device) -> None:
    if len(bucket) == 1 and device.type == "cpu":
        dist.broadcast(bucket[0], src=0)
        return
    whole = torch.cat(bucket).to(device)
    dist.broadcast(whole, src=0)
    if dist.get_rank() != 0:
        received = torch.split(whole.cpu(), [len(part) for part in bucket])
        for part, own in zip(received, bucket, strict=True):
            own.copy_(part)
