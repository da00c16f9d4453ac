"""The rival of the kit's loop: one written by hand, without other features."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from slurm_job_kit.jobs.contract.spec import Train
from slurm_job_kit.trainer.data import data_set
from slurm_job_kit.trainer.model import models
from slurm_job_kit.trainer.model.objectives import DataFacts
from tests.bench.place import Place, StepClock

ddp = partial(DistributedDataParallel, gradient_as_bucket_view=True)


def train(
    place: Place,
    spec: Train,
    num_steps: int,
    clock: StepClock,
    wrap: Callable[[nn.Module], Callable[..., Any]] = ddp,
) -> None:
    """Train for some steps, without checkpoints, stops, logs or a report of the loss.

    Model and data are the kit's, the optimizer is fused. Deterministic operators are off.
    """
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark = True
    world_size = place.distributed.world_size
    source: Any = data_set.create(spec, place.distributed.rank, world_size).train
    samples = source.to(place.device)
    size = spec.micro_batch_size
    example = samples.batch(torch.zeros(1, dtype=torch.int64, device=place.device))
    torch.manual_seed(0)
    vocabulary = getattr(samples, "vocab_size", None)
    facts = DataFacts(spec, samples.num_classes, vocab_size=vocabulary)
    model = models.create(facts, example).to(place.device)
    if spec.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    forward, bf16 = wrap(model), partial(torch.autocast, place.device.type, torch.bfloat16)
    autocast: Callable[[], Any] = bf16 if spec.precision == "bf16" else nullcontext
    optimizer: Any = torch.optim.AdamW(model.parameters(), spec.lr, fused=True)
    if spec.optimizer == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), spec.lr, spec.momentum, fused=True)
    loss_of = labelled_loss if vocabulary is None else next_token_loss
    step = 0
    while True:
        order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(step))
        own = order.to(place.device)[place.distributed.rank :: world_size]
        for start in range(0, len(samples) // world_size - size + 1, size):
            clock.begin(step)
            if step == num_steps:
                return
            with autocast():
                loss = loss_of(forward, samples.batch(own[start : start + size]))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1


def labelled_loss(forward: Callable[..., Any], batch: Any) -> torch.Tensor:
    inputs, labels = batch
    return cross_entropy(forward(inputs), labels)


def next_token_loss(forward: Callable[..., Any], tokens: torch.Tensor) -> torch.Tensor:
    return cross_entropy(forward(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
