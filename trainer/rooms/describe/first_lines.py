"""The lines at the start of rank 0's log: device, size of the model, main values of the spec."""

from __future__ import annotations

import os
from collections.abc import Iterator

import torch
from torch import nn

from ...contract import BatchSizes, Train
from ...data.batches import TrainingLength
from ...process.run_handle import RankContext
from .reproducibility import processor


def start_lines(
    context: RankContext, module: nn.Module, length: TrainingLength, sizes: BatchSizes
) -> Iterator[str]:
    """Yield the lines."""
    yield f"device {_device(context.device)}"
    counts = {True: 0, False: 0}
    num_bytes = 0
    for parameter in module.parameters():
        counts[parameter.requires_grad] += parameter.numel()
        num_bytes += parameter.numel() * parameter.element_size()
    frozen = f" and {counts[False]:,} frozen ones" if counts[False] else ""
    yield (
        f"model {context.train.model}: {counts[True]:,} parameters{frozen}, "
        f"{num_bytes / 2**20:.1f} MiB"
    )
    yield f"training: {_training(context, length, sizes)}"


def _device(device: torch.device) -> str:
    """Return name and memory of a GPU, or of the processor and its host."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return f"{device} of {properties.name}, {properties.total_memory / 2**30:.1f} GiB"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"cpu, {processor()}, {memory / 2**30:.1f} GiB on the host"


def _training(context: RankContext, length: TrainingLength, sizes: BatchSizes) -> str:
    """Return sizes, optimizer, schedule, precision and seed in one line."""
    train = context.train
    ranks, rounds = f"{sizes.world_size} ranks", sizes.grad_accum_steps
    factors = f"{sizes.micro_batch_size} x {ranks} x {rounds}"
    if not sizes.is_even:
        factors = f"{ranks} x {rounds} rounds of {sizes.micro_batch_sizes} samples"
    return ", ".join(
        [
            f"{length.total_steps} steps of {length.global_batch_size} samples ({factors})",
            f"{train.objective}",
            f"{train.optimizer} lr {train.lr:g} weight_decay {train.weight_decay:g}",
            _schedule(train),
            train.precision,
            f"seed {train.seed}",
            "deterministic" if context.is_deterministic else "not deterministic",
        ]
    )


def _schedule(train: Train) -> str:
    warmup = f" after {train.warmup_steps} steps of warm-up" if train.warmup_steps else ""
    return f"schedule {train.schedule}{warmup}"
