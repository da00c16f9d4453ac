"""Everything that trains, in the one order in which a resume is bitwise."""

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
from trainer.data.batches import Batch, Batches, num_classes
from trainer.data.feed import Feed, HeldOut
from trainer.dist.context import gather
from trainer.dist.run_handle import Job
from trainer.errors import UserError
from trainer.model import models, optim, precision
from trainer.model.precision import Precision
from trainer.user_code import user_code


@dataclass(frozen=True)
class Data:
    """What to train on, in batches on the device, and the held-out samples."""

    feed: Feed
    test: HeldOut
    batches: Batches
    num_classes: int


@dataclass(frozen=True)
class Replica:
    """This rank's copy of what is trained. `module` is the model inside the wrapper `ddp`."""

    ddp: DistributedDataParallel
    module: nn.Module
    optimizer: torch.optim.Optimizer
    precision: Precision

    @property
    def scaler(self) -> torch.amp.GradScaler:
        """The scaler of fp16 gradients; without fp16 it does nothing, and has an empty state."""
        return self.precision.scaler

    def autocast(self) -> AbstractContextManager[object]:
        """A context for the forward pass and the loss, at the precision of the spec."""
        return self.precision.autocast()


def set_up_torch(job: Job) -> None:
    """Fix what results depend on: the number of threads and the choice of operators."""
    if job.train.compile:
        _keep_compiled(job)
    torch.set_num_threads(job.run.spec.launch.threads_per_rank)
    if job.is_deterministic:
        # Read by cuBLAS when it starts; without it torch refuses its matrix products.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.benchmark = not job.is_deterministic
    torch.use_deterministic_algorithms(job.is_deterministic)
    # Filling what is overwritten anyway took 5 to 8 % of a small CNN's step.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def _keep_compiled(job: Job) -> None:
    """Have what is compiled kept in the run directory, unless the user chose another place.

    A place for each rank: torch locks files in it, and locks on NFS are not to be trusted. To be
    said before torch imports its compiler, which else chooses one in /tmp; Triton's is inside.
    """
    if job.run.dir.path.is_dir():
        cache = job.run.dir.compile_cache / f"rank-{job.context.rank:05d}"
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache))


def build_data(job: Job) -> Data:
    """The data set of the spec, cut into this world's batches."""
    spec = job.train
    with user_code("train.dataset", spec.dataset):
        train, test = builtin.create(spec.dataset, spec.dataset_args)
        classes = num_classes(train, test)
    with user_code("train.transform", spec.transform or ""):
        transform = transforms.create(spec.transform, spec.transform_args)
    sizes = {"training samples": len(train), "held-out samples": len(test), "classes": classes}
    check_same_data(spec.dataset, sizes, job.device)
    batches = Batches.of(spec, len(train), job.context.world_size)
    job.context.say(
        f"{spec.dataset}: {len(train)} training samples, {len(test)} held out; {batches.describe()}"
    )
    feed = Feed(train, transform, batches, job)
    return Data(feed, HeldOut(test, transform, job), batches, classes)


def check_same_data(dataset: str, sizes: dict[str, int], device: torch.device) -> None:
    """Refuse to train where ranks see different data, such as a copy that is not complete."""
    rows = gather(torch.tensor(list(sizes.values()), dtype=torch.int64, device=device))
    first = rows[0].tolist()
    for rank, row in enumerate(rows):
        for name, size, own in zip(sizes, first, row.tolist(), strict=True):
            if own != size:
                raise UserError(
                    f"train.dataset {dataset} differs between ranks: rank 0 sees {size} {name}, "
                    f"rank {rank} {own}: give all nodes the same files"
                )


def build_replica(job: Job, data: Data) -> Replica:
    """Model, wrapper and optimizer at the start of training; a checkpoint may be loaded on top.

    DDP lays its gradient buckets out anew after the first backward of a process, which changes
    the order of summation. So every attempt, the first included, spends that backward on zeros
    and then loads its state; else the first step of a resume differs from 3 ranks on.
    """
    spec = job.train
    check_wrap(spec, data.batches.grad_accum_steps, job.device)
    numbers = precision.set_up(spec, job.device, job.context.say)
    example = data.feed.example(data.batches.micro_batch_size)
    # After the example, in which a transform of one's own may draw numbers.
    torch.manual_seed(seeds.mix(seeds.WEIGHTS, spec.seed))
    with user_code("train.model", spec.model):
        module = models.create(spec.model, spec.model_args, example[0], data.num_classes)
        module = _placed(module, job)
        ddp = wrap(module, spec, job.device)
    replica = Replica(ddp, module, optim.create(module, spec), numbers)
    # After the wrap, which sends rank 0's weights to all.
    initial = {name: value.clone() for name, value in module.state_dict().items()}
    with user_code("train.model", spec.model):
        _throw_away_pass(job, data.num_classes, replica, example)
    module.load_state_dict(initial)
    return replica


def _placed(module: nn.Module, job: Job) -> nn.Module:
    """The model on its device, in the memory format of the spec, compiled in place."""
    module = module.to(job.device)
    if job.train.channels_last:
        module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if job.train.sync_batchnorm:
        module = nn.SyncBatchNorm.convert_sync_batchnorm(module)  # type: ignore[no-untyped-call]
    if job.train.compile:
        # Not torch.compile(module), which renames all parameters, nor module.compile(), which
        # silently compiles nothing of an nn.Sequential (torch 2.13).
        module.forward = torch.compile(module.forward)
    return module


def check_wrap(train: Train, grad_accum_steps: int, device: torch.device) -> None:
    """Refuse what the spec's own check cannot see: it knows neither device nor batches."""
    if train.strategy != "ddp":
        raise UserError(f"train.strategy: {train.strategy!r} is not known; ddp is")
    if train.sync_batchnorm and device.type != "cuda":
        raise UserError(
            f"train.sync_batchnorm needs GPUs, but this rank is on the {device.type}: leave it out"
        )
    # With no_sync() DDP crashes or silently stops reducing (torch 2.13).
    if train.static_graph and grad_accum_steps > 1:
        raise UserError(
            f"train.static_graph excludes gradient accumulation, but train.global_batch_size "
            f"{train.global_batch_size} makes {grad_accum_steps} batches of a step here: leave "
            "static_graph out, or raise train.micro_batch_size"
        )


def wrap(module: nn.Module, train: Train, device: torch.device) -> DistributedDataParallel:
    """The model under DDP as the spec sets it; a static graph finds unused parameters by itself."""
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise UserError(
            f"train.model {train.model} has no parameter that trains: give it some, or leave some "
            "with requires_grad"
        )
    return DistributedDataParallel(
        module,
        device_ids=[device] if device.type == "cuda" else None,
        bucket_cap_mb=train.bucket_cap_mb,
        find_unused_parameters=train.find_unused_parameters and not train.static_graph,
        gradient_as_bucket_view=train.gradient_as_bucket_view,
        static_graph=train.static_graph,
    )


def _throw_away_pass(job: Job, classes: int, replica: Replica, example: Batch) -> None:
    """One forward and backward pass as in training, with an exchange of the gradients."""
    spec = job.train
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
    """Refuse scores of another shape than `expected`, which is [samples, classes]."""
    samples, classes = expected
    if not isinstance(scores, torch.Tensor):
        raise UserError(
            f"train.model {spec.model} gives a {type(scores).__name__}: have it return a tensor of "
            f"scores [N, {classes}]"
        )
    if scores.ndim != 2 or scores.shape[1] != classes:
        raise UserError(
            f"train.model {spec.model} gives scores of shape {tuple(scores.shape)}, but the "
            f"labels of {spec.dataset} name {classes} classes"
        )
    if len(scores) != samples:
        raise UserError(f"train.model {spec.model} gives {len(scores)} scores for {samples} inputs")


def _is_unused(parameter: nn.Parameter) -> bool:
    return parameter.requires_grad and parameter.grad is None
