"""Everything that trains, in the one order in which a resume is bitwise."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from trainer import datasets, models, optim, seeds
from trainer.data import Batches, Samples, num_classes
from trainer.errors import UserError
from trainer.launch import Job


@dataclass(frozen=True)
class Data:
    """The samples, on the device, and their batches."""

    train: Samples
    test: Samples
    batches: Batches


@dataclass(frozen=True)
class Replica:
    """This rank's copy of what is trained. `module` is the model inside the wrapper `ddp`."""

    ddp: nn.Module
    module: nn.Module
    optimizer: torch.optim.Optimizer


def set_up_torch(threads_per_rank: int, deterministic: bool) -> None:
    """Fix what results depend on: the number of threads and the choice of operators."""
    torch.set_num_threads(threads_per_rank)
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(deterministic)


def build_data(job: Job) -> Data:
    """The data set of the spec, cut into this world's batches."""
    spec = job.train
    train, test = datasets.create(spec.dataset, spec.dataset_args)
    batches = Batches(len(train), spec.micro_batch_size, job.context.world_size, spec.seed)
    job.context.say(
        f"{spec.dataset}: {len(train)} training samples, {len(test)} held out; {batches.describe()}"
    )
    return Data(train.to(job.device), test.to(job.device), batches)


def build_replica(job: Job, data: Data) -> Replica:
    """Model, wrapper and optimizer at the start of training; a checkpoint may be loaded on top.

    DDP lays its gradient buckets out anew after the first backward of a process, which changes
    the order of summation. So every attempt, the first included, spends that backward on zeros
    and then loads its state; else the first step of a resume differs from 3 ranks on.
    """
    spec = job.train
    torch.manual_seed(seeds.mix(seeds.WEIGHTS, spec.seed))
    classes = num_classes(data.train, data.test)
    module = models.create(spec.model, spec.model_args, data.train.inputs, classes).to(job.device)
    ddp = wrap(module, spec.strategy, job.device)
    # After the wrap, which sends rank 0's weights to all.
    initial = {name: value.clone() for name, value in module.state_dict().items()}
    _throw_away_pass(job, data, ddp)
    module.load_state_dict(initial)
    return Replica(ddp, module, optim.create(module, spec))


def wrap(module: nn.Module, strategy: str, device: torch.device) -> nn.Module:
    """The model under the spec's way of sharing the work."""
    if strategy != "ddp":
        raise UserError(f"train.strategy: {strategy!r} is not known; ddp is")
    device_ids = [device] if device.type == "cuda" else None
    return DistributedDataParallel(module, device_ids=device_ids, gradient_as_bucket_view=True)


def _throw_away_pass(job: Job, data: Data, ddp: nn.Module) -> None:
    spec = job.train
    zeros = torch.zeros(spec.micro_batch_size, dtype=torch.int64, device=job.device)
    inputs, labels = data.train.batch(zeros)
    scores = ddp(torch.zeros_like(inputs))
    classes = num_classes(data.train, data.test)
    if scores.ndim != 2 or scores.shape[1] != classes:
        raise UserError(
            f"train.model {spec.model} gives scores of shape {tuple(scores.shape)}, but the "
            f"labels of {spec.dataset} name {classes} classes"
        )
    loss = cross_entropy(scores, torch.zeros_like(labels))
    loss.backward()  # type: ignore[no-untyped-call]
    ddp.zero_grad(set_to_none=True)
