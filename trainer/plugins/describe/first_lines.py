"""The lines at the start of rank 0's log: device, data, model, and main values."""

import os
from collections.abc import Iterator

import torch
from torch import nn

from ...contract import BatchSizes
from ...data.batches import TrainingLength
from ...data.feed import IndexedBatches
from ...model.training_data import Data
from ...process.run_handle import RankContext
from .reproducibility import processor


def start_lines(
    context: RankContext, module: nn.Module, length: TrainingLength, sizes: BatchSizes
) -> Iterator[str]:
    yield f"device {_device(context.device)}"
    trained = sum(each.numel() for each in module.parameters() if each.requires_grad)
    others = sum(each.numel() for each in module.parameters()) - trained
    num_bytes = sum(each.numel() * each.element_size() for each in module.parameters())
    frozen = f" and {others:,} frozen ones" if others else ""
    mib = f"{num_bytes / 2**20:.1f} MiB"
    yield f"model {context.train.model}: {trained:,} parameters{frozen}, {mib}"
    train = context.train
    warmup = f" after {train.warmup_steps} steps of warm-up" if train.warmup_steps else ""
    factors = f"{sizes.micro_batch_sizes} x {sizes.world_size} ranks x {sizes.grad_accum_steps}"
    parts = [
        f"training: {length.total_steps} steps of {length.global_batch_size} samples ({factors})",
        f"{train.objective}",
        f"{train.optimizer} lr {train.lr:g} weight_decay {train.weight_decay:g}",
        f"schedule {train.schedule}{warmup}",
        train.precision,
        f"seed {train.seed}",
        "deterministic" if context.is_deterministic else "not deterministic",
    ]
    yield ", ".join(parts)


def _device(device: torch.device) -> str:
    """Return name and memory of a GPU, or of the processor and its host."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return f"{device} of {properties.name}, {properties.total_memory / 2**30:.1f} GiB"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"cpu, {processor()}, {memory / 2**30:.1f} GiB on the host"


def data_line(data: Data, dataset: str) -> str:
    """Return the numbers of samples, and how the ranks share them."""
    batches, held_out = data.train_batches, f"{len(data.held_out or ())} held out"
    if not isinstance(batches, IndexedBatches):
        size = batches.sizes.global_batch_size
        return f"{dataset}: a stream, {held_out}; {size} samples a step"
    of = batches.batches
    return (
        f"{dataset}: {of.num_samples} training samples, {held_out}; {of.samples_per_epoch} samples "
        f"an epoch, {of.num_samples - of.samples_per_epoch} dropped; {of.steps_per_epoch} steps"
    )
