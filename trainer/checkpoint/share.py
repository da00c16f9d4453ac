"""Broadcasts a saved state from rank 0, tensor by tensor: only rank 0 reads files."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from ..process.context import broadcast_bytes
from ..strategy.interface import Sharding
from . import outline

# One broadcast; on a GPU, which also holds the model, it is one buffer.
BUCKET_BYTES = 64 * 2**20
# Smaller tensors are copied into a bucket. Larger ones on a CPU are sent from and to their place.
SMALL_BYTES = 2**20

Item = TypeVar("Item")


def share(value: Any, device: torch.device) -> Any:
    """Return rank 0's dict of tensors, plain values and containers on every rank, or None.

    All ranks call it: the others learn from the first broadcast how many follow.
    The tensors are contiguous and on the CPU; rank 0 gets its own `value` back. The `value` of the
    other ranks is ignored.
    """
    if dist.get_world_size() == 1:
        return value
    is_first, text = dist.get_rank() == 0, b""
    if is_first and value is not None:
        text = outline.to_json(value, Sharding(1, 0))
    text = broadcast_bytes(text, device)
    if not text:
        return None
    if not is_first:
        value = outline.with_memory(outline.from_json(text), [])
    max_bytes = SMALL_BYTES if device.type == "cpu" else BUCKET_BYTES
    for bucket in in_buckets(_parts(value), len, max_bytes):
        _broadcast(bucket, device)
    return value


def in_buckets(
    items: Iterable[Item], size_of: Callable[[Item], int], max_bytes: int
) -> Iterator[list[Item]]:
    """Yield the items in lists of at most `max_bytes`; a larger item is alone in its list."""
    bucket: list[Item] = []
    size = 0
    for item in items:
        if bucket and size + size_of(item) > max_bytes:
            yield bucket
            bucket, size = [], 0
        bucket.append(item)
        size += size_of(item)
    if bucket:
        yield bucket


def _parts(value: Any) -> Iterator[torch.Tensor]:
    """Yield the memory of each tensor, uint8 [n], in parts of at most BUCKET_BYTES."""
    for _, tensor in outline.leaves(value):
        assert isinstance(tensor, torch.Tensor)
        yield from torch.split(tensor.view(-1).view(torch.uint8), BUCKET_BYTES)


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
