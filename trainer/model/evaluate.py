"""Held-out evaluation that counts every sample once, at any world size."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from trainer.data.feed import HeldOut


@torch.no_grad()
def evaluate(
    module: nn.Module,
    held_out: HeldOut,
    autocast: Callable[[], AbstractContextManager[object]],
    beat: Callable[[], None],
) -> tuple[float, float]:
    """(mean loss, accuracy) over all held-out samples, the same on every rank.

    With the buffers of rank 0. The module's scores are computed under `autocast()`; `beat` is
    called before each batch.
    """
    for buffer in module.buffers():
        dist.broadcast(buffer, src=0)
    sums = torch.zeros(3, dtype=torch.float64, device=held_out.device)
    module.eval()
    for inputs, labels in held_out.batches():
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
