"""Builds data, model and optimizer of this rank, in the order that a bitwise resume needs.

`set_up_torch` sets two environment variables of this process, each only where the user has not:
CUBLAS_WORKSPACE_CONFIG and TORCHINDUCTOR_CACHE_DIR.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from jobs.spec import Train
from trainer import seeds
from trainer.data import builtin, transforms
from trainer.data.batches import Batches
from trainer.data.feed import HeldOut, TrainBatches
from trainer.data.sources import Batch, num_classes
from trainer.dist.context import gather
from trainer.dist.run_handle import RankContext
from trainer.errors import UserError
from trainer.model import models, optim, precision
from trainer.model.precision import Precision
from trainer.user_code import user_code


@dataclass(frozen=True)
class Data:
    """The training batches and held-out samples of this rank, and the batch sizes."""

    train_batches: TrainBatches
    held_out: HeldOut
    batches: Batches
    num_classes: int


@dataclass(frozen=True)
class Replica:
    """This rank's model and optimizer. `module` is the model inside the wrapper `ddp`."""

    ddp: DistributedDataParallel
    module: nn.Module
    optimizer: torch.optim.Optimizer
    precision: Precision

    @property
    def scaler(self) -> torch.amp.GradScaler:
        """The scaler of fp16 gradients; disabled, with an empty state, for other precisions."""
        return self.precision.scaler

    def autocast(self) -> AbstractContextManager[object]:
        """Return a context for the forward pass and the loss, at the precision of the spec."""
        return self.precision.autocast()


def set_up_torch(context: RankContext) -> None:
    """Set torch's global switches on which results depend: threads and choice of operators."""
    if context.train.compile:
        _set_compile_cache(context)
    torch.set_num_threads(context.run.spec.launch.threads_per_rank)
    if context.is_deterministic:
        # cuBLAS reads it when it starts; without it torch refuses matrix products in this mode.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.benchmark = not context.is_deterministic
    torch.use_deterministic_algorithms(context.is_deterministic)
    # Filling memory that is overwritten anyway took 5 to 8 % of a small CNN's step.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def _set_compile_cache(context: RankContext) -> None:
    """Keep compiled code in the run directory, unless the user set TORCHINDUCTOR_CACHE_DIR.

    Each rank has its own directory, because torch locks files in it and locks on NFS are not
    reliable. The variable must be set before torch imports its compiler, which otherwise uses
    /tmp. Triton's cache is inside this directory.
    """
    if context.run.dir.path.is_dir():
        cache = context.run.dir.compile_cache / f"rank-{context.distributed.rank:05d}"
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache))


def build_data(context: RankContext) -> Data:
    """Return the data set of the spec as batches for this world size."""
    spec = context.train
    with user_code("train.dataset", spec.dataset):
        train, test = builtin.create(spec.dataset, spec.dataset_args)
        classes = num_classes(train, test)
    with user_code("train.transform", spec.transform or ""):
        transform = transforms.create(spec.transform, spec.transform_args)
    sizes = {"training samples": len(train), "held-out samples": len(test), "classes": classes}
    check_same_data(spec.dataset, sizes, context.device)
    batches = Batches.of(spec, len(train), context.distributed.world_size)
    context.distributed.log(
        f"{spec.dataset}: {len(train)} training samples, {len(test)} held out; {batches.describe()}"
    )
    train_batches = TrainBatches(train, transform, batches, context)
    return Data(train_batches, HeldOut(test, transform, context), batches, classes)


def check_same_data(dataset: str, sizes: dict[str, int], device: torch.device) -> None:
    """Raise UserError where ranks see different data, such as an incomplete copy on a node.

    sizes: this rank's numbers by name; the names and their order are the same on all ranks.
    """
    rows = gather(torch.tensor(list(sizes.values()), dtype=torch.int64, device=device))
    first = rows[0].tolist()
    for rank, row in enumerate(rows):
        for name, size, own in zip(sizes, first, row.tolist(), strict=True):
            if own != size:
                raise UserError(
                    f"train.dataset {dataset} differs between ranks: rank 0 sees {size} {name}, "
                    f"rank {rank} {own}: give all nodes the same files"
                )


def build_replica(context: RankContext, data: Data) -> Replica:
    """Return model, wrapper and optimizer with their initial weights; a checkpoint may follow.

    DDP rebuilds its gradient buckets after the first backward pass of a process, which changes the
    order of summation. So every attempt, including the first, spends that backward pass on zeros
    and then loads its state. Otherwise the first step after a resume differs from 3 ranks on.
    """
    spec = context.train
    check_device(spec, context.device)
    numbers = precision.set_up(spec, context.device, context.distributed.log)
    example = data.train_batches.example(data.batches.micro_batch_size)
    # After the example, because a user's transform may draw random numbers there.
    torch.manual_seed(seeds.mix(seeds.WEIGHTS, spec.seed))
    with user_code("train.model", spec.model):
        module = models.create(spec.model, spec.model_args, example[0], data.num_classes)
        module = _placed(module, context)
        ddp = wrap(module, spec, context.device)
    replica = Replica(ddp, module, optim.create(module, spec), numbers)
    # After the wrap, which broadcasts rank 0's weights.
    initial = {name: value.clone() for name, value in module.state_dict().items()}
    with user_code("train.model", spec.model):
        _throw_away_pass(context, data.num_classes, replica, example)
    module.load_state_dict(initial)
    return replica


def _placed(module: nn.Module, context: RankContext) -> nn.Module:
    """Return the model on its device, in the memory format of the spec, compiled in place."""
    module = module.to(context.device)
    if context.train.channels_last:
        module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if context.train.sync_batchnorm:
        module = nn.SyncBatchNorm.convert_sync_batchnorm(module)  # type: ignore[no-untyped-call]
    if context.train.compile:
        # torch.compile(module) would rename all parameters; module.compile() silently compiles
        # nothing of an nn.Sequential (torch 2.13).
        module.forward = torch.compile(module.forward)
    return module


def check_device(train: Train, device: torch.device) -> None:
    """Refuse keys that do not fit the device, which the check at submit does not know."""
    if train.sync_batchnorm and device.type != "cuda":
        raise UserError(
            f"train.sync_batchnorm needs GPUs, but this rank is on the {device.type}: leave it out"
        )


def wrap(module: nn.Module, train: Train, device: torch.device) -> DistributedDataParallel:
    """Return the model under DDP with the options of the spec.

    A static graph finds unused parameters by itself. Raises UserError where no parameter trains.
    """
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise UserError(
            f"train.model {train.model} has no trainable parameter: add one, or set requires_grad "
            "of one to True"
        )
    return DistributedDataParallel(
        module,
        device_ids=[device] if device.type == "cuda" else None,
        bucket_cap_mb=train.bucket_cap_mb,
        find_unused_parameters=train.find_unused_parameters and not train.static_graph,
        gradient_as_bucket_view=train.gradient_as_bucket_view,
        static_graph=train.static_graph,
    )


def _throw_away_pass(context: RankContext, classes: int, replica: Replica, example: Batch) -> None:
    """Run one forward and backward pass on zeros, with the exchange of gradients.

    Raises UserError where the model's scores do not fit the data set, or where parameters get no
    gradient.
    """
    spec = context.train
    inputs, labels = torch.zeros_like(example[0]), torch.zeros_like(example[1])
    with replica.autocast():
        scores = replica.ddp(inputs)
        _check_scores(spec, scores, (len(inputs), classes))
        loss = cross_entropy(scores, labels, label_smoothing=spec.label_smoothing)
    loss.backward()  # type: ignore[no-untyped-call]
    unused = [name for name, p in replica.module.named_parameters() if _is_unused(p)]
    if unused and not (spec.find_unused_parameters or spec.static_graph):
        raise UserError(
            f"train.model {spec.model}: {len(unused)} parameters got no gradient, the first is "
            f"{unused[0]}: set train.find_unused_parameters to true, or freeze them"
        )
    replica.ddp.zero_grad(set_to_none=True)


def _check_scores(spec: Train, scores: object, expected: tuple[int, int]) -> None:
    """Raise UserError unless `scores` is a tensor of the shape `expected`: samples, classes."""
    samples, classes = expected
    if not isinstance(scores, torch.Tensor):
        raise UserError(
            f"train.model {spec.model} returns a {type(scores).__name__}: have it return a tensor "
            f"of scores [n, {classes}]"
        )
    if scores.ndim != 2 or scores.shape[1] != classes:
        raise UserError(
            f"train.model {spec.model} returns scores of shape {tuple(scores.shape)}, but the "
            f"labels of {spec.dataset} name {classes} classes"
        )
    if len(scores) != samples:
        raise UserError(
            f"train.model {spec.model} returns {len(scores)} scores for {samples} inputs"
        )


def _is_unused(parameter: nn.Parameter) -> bool:
    return parameter.requires_grad and parameter.grad is None
