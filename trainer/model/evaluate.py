"""Held-out evaluation, which counts every sample once at any world size."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from trainer.data.feed import HELD_OUT_BATCH_SIZE, HeldOut


def _never(index: int, is_last: bool) -> bool:
    return False


@torch.no_grad()
def evaluate(
    module: nn.Module,
    held_out: HeldOut,
    autocast: Callable[[], AbstractContextManager[object]],
    beat: Callable[[], None],
    is_stop_agreed: Callable[[int, bool], bool] = _never,
) -> tuple[float, float] | None:
    """Return (mean loss, accuracy) over all held-out samples, the same on every rank.

    None if the ranks agreed to stop before the last batch. The buffers are those of rank 0. The
    scores are computed under `autocast()`.

    beat: called before each batch of this rank.
    is_stop_agreed: called with (index, whether it is the last) before each batch, on every rank
    equally often, also where a rank has one batch less; True ends the evaluation.
    """
    for buffer in module.buffers():
        dist.broadcast(buffer, src=0)
    sums = torch.zeros(3, dtype=torch.float64, device=held_out.device)
    num_rounds = _num_rounds(len(held_out))
    module.eval()
    for index, batch in itertools.zip_longest(range(num_rounds), held_out.batches()):
        if is_stop_agreed(index, index == num_rounds - 1):
            module.train()
            return None
        if batch is None:
            continue
        inputs, labels = batch
        beat()
        with autocast():
            scores = module(inputs)
        sums[0] += cross_entropy(scores.float(), labels, reduction="none").double().sum()
        sums[1] += (scores.argmax(dim=1) == labels).sum()
        sums[2] += len(labels)
    module.train()
    dist.all_reduce(sums)
    loss_sum, num_correct, num_samples = sums.tolist()
    if num_samples != len(held_out):
        raise RuntimeError(f"evaluation counted {num_samples:.0f} of {len(held_out)} samples")
    return loss_sum / num_samples, num_correct / num_samples


def _num_rounds(num_samples: int) -> int:
    """Return the number of batches of rank 0, which has the most: sample i is of rank i % W."""
    return math.ceil(math.ceil(num_samples / dist.get_world_size()) / HELD_OUT_BATCH_SIZE)
