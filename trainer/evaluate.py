"""Held-out evaluation that counts every sample once, at any world size."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from trainer.data import Samples

# No gradients are kept, so it need not be the training's; fixed, so that results never depend
# on the micro batch.
BATCH_SIZE = 256


@torch.no_grad()
def evaluate(module: nn.Module, test: Samples, rank: int, world_size: int) -> tuple[float, float]:
    """(mean loss, accuracy) over `test`, the same on every rank; with the buffers of rank 0."""
    for buffer in module.buffers():
        dist.broadcast(buffer, src=0)
    device = test.labels.device
    own = torch.arange(rank, len(test), world_size, device=device)
    sums = torch.zeros(3, dtype=torch.float64, device=device)
    module.eval()
    for indices in torch.split(own, BATCH_SIZE):
        inputs, labels = test.batch(indices)
        scores = module(inputs)
        sums[0] += cross_entropy(scores, labels, reduction="none").double().sum()
        sums[1] += (scores.argmax(dim=1) == labels).sum()
        sums[2] += len(labels)
    module.train()
    dist.all_reduce(sums)
    loss_sum, num_correct, num_samples = sums.tolist()
    if num_samples != len(test):
        raise RuntimeError(f"evaluation counted {num_samples:.0f} of {len(test)} samples")
    return loss_sum / num_samples, num_correct / num_samples
