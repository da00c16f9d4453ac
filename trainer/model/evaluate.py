"""Held-out evaluation, which counts every sample once at any world size."""

import itertools
from collections.abc import Callable

import torch
import torch.distributed as dist

from ..data.feed import HeldOut
from .replica import Replica


@torch.no_grad()
def evaluate(
    replica: Replica,
    held_out: HeldOut,
    beat: Callable[[], None],
    is_stop_agreed: Callable[[int, bool], bool],
) -> torch.Tensor | None:
    """Return the sum of `Replica.row` over all held-out samples, the same on every rank.

    None if the ranks agreed to stop before the last batch. The model's buffers are those of rank 0.

    beat: called before each batch of this rank.
    is_stop_agreed: called with (index, whether it is the last) before each batch, on every rank
    equally often, also where a rank has one batch less; True ends the evaluation.
    """
    module, sums = replica.module, replica.empty_row()
    is_alone = dist.get_world_size() == 1
    # All ranks: BatchNorm's statistics differ between them, and a checkpoint has those of rank 0.
    for buffer in () if is_alone else module.buffers():
        dist.broadcast(buffer, src=0)
    num_rounds, num_samples, is_stopped = held_out.num_rounds, 0, False
    module.eval()
    for index, batch in itertools.zip_longest(range(num_rounds), held_out.batches()):
        if is_stopped := is_stop_agreed(index, index == num_rounds - 1):
            break
        if batch is not None:
            beat()
            sums += replica.row(batch.content)
            num_samples += batch.num_samples
        elif replica.strategy.evaluates_together:  # a sample that does not count
            replica.row(held_out.example())
    module.train()
    replica.strategy.end_evaluation(module)
    if is_stopped:
        return None
    counted = torch.cat([sums, sums.new_tensor([float(num_samples)])])
    if not is_alone:
        dist.all_reduce(counted)  # all ranks: each has evaluated its part of the samples
    if counted[-1] != len(held_out):
        raise RuntimeError(f"evaluation counted {counted[-1]:.0f} of {len(held_out)} samples")
    return counted[:-1]
