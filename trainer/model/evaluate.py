"""Held-out evaluation, which counts every sample once at any world size."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

from ..data.feed import HeldOut
from ..data.sources import Batch


def _never(index: int, is_last: bool) -> bool:
    return False


@torch.no_grad()
def evaluate(
    module: nn.Module,
    held_out: HeldOut,
    row_of: Callable[[Batch], torch.Tensor],
    sums: torch.Tensor,
    beat: Callable[[], None],
    is_stop_agreed: Callable[[int, bool], bool] = _never,
    is_together: bool = False,
) -> torch.Tensor | None:
    """Return the sum of `row_of` over all held-out samples, the same on every rank.

    None if the ranks agreed to stop before the last batch. The model's buffers are those of rank 0.

    row_of: float64 [k] of a batch, such as `Replica.row`. sums: zeros of that shape; changed.
    beat: called before each batch of this rank.
    is_stop_agreed: called with (index, whether it is the last) before each batch, on every rank
    equally often, also where a rank has one batch less; True ends the evaluation.
    is_together: whether a forward pass needs all ranks. A rank with one batch less then computes a
    sample that does not count.
    """
    is_alone = dist.get_world_size() == 1
    for buffer in () if is_alone else module.buffers():
        dist.broadcast(buffer, src=0)
    num_rounds = held_out.num_rounds
    num_samples = 0
    module.eval()
    for index, batch in itertools.zip_longest(range(num_rounds), held_out.batches()):
        if is_stop_agreed(index, index == num_rounds - 1):
            module.train()
            return None
        if batch is None:
            if is_together:
                row_of(held_out.example())
            continue
        beat()
        sums += row_of(batch.content)
        num_samples += batch.num_samples
    module.train()
    counted = torch.cat([sums, sums.new_tensor([float(num_samples)])])
    if not is_alone:
        dist.all_reduce(counted)
    if counted[-1] != len(held_out):
        raise RuntimeError(f"evaluation counted {counted[-1]:.0f} of {len(held_out)} samples")
    return counted[:-1]
