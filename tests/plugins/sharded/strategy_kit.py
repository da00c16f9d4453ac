"""Trains small models under each strategy as one of several ranks; the tests compare the results.

Four ranks join groups of 1 to 4.
"""

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch._dynamo
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.utils._python_dispatch import TorchDispatchMode

from slurm_job_kit.jobs.contract.spec import Spec, Train
from slurm_job_kit.trainer import seeds
from slurm_job_kit.trainer.data.sources import Samples
from slurm_job_kit.trainer.errors import UserError
from slurm_job_kit.trainer.model import build
from slurm_job_kit.trainer.model.objectives import Sums
from slurm_job_kit.trainer.model.training_data import build_data
from slurm_job_kit.trainer.plugins.sharded import fsdp
from slurm_job_kit.trainer.process.step_agreement import Agreement
from slurm_job_kit.trainer.training.evaluation import evaluate
from slurm_job_kit.trainer.training.loop import train_step
from tests.core.ranks import CPU, context_of, join, place_of, results

STEPS = 2
GPT = Train(
    model="gpt",  # its head has the weights of its embedding
    model_args={"n_layer": 3, "n_head": 2, "n_embd": 14, "dropout": 0.1},
    objective="language_model",
    dataset="python_source",
    dataset_args={"block_size": 13, "max_bytes": 20_000},
    micro_batch_size=2,
    optimizer="adamw",
    lr=0.01,
    weight_decay=0.1,
    grad_clip_norm=0.1,
)
RESNET = Train(
    dataset="digits", model_args={"channels": [5, 7]}, micro_batch_size=4, weight_decay=0.001
)
MASKED = Train(
    dataset=f"{__name__}:points",
    model=f"{__name__}:PartlyFrozen",
    objective=f"{__name__}:masked",
    micro_batch_size=3,
    shard_modules=["Linear"],
)
BRANCHES = dataclasses.replace(
    MASKED,
    model=f"{__name__}:Branches",
    find_unused_parameters=True,
    weight_decay=0.0,
    shard_modules=[],
    lr=0.01,
)
UNEVEN: dict[str, Any] = {
    "global_batch_size": 13,
    "model_args": {**GPT.model_args, "dropout": 0.0},
    "optimizer": "sgd",
    "lr": 1.0,
    "momentum": 0.0,
}
CASES: dict[str, Train] = {
    "gpt": GPT,
    "accumulation": dataclasses.replace(GPT, grad_accum_steps=3),
    "resnet": RESNET,
    "masked": MASKED,
    "branches": BRANCHES,
    "bf16 gpt": dataclasses.replace(GPT, precision="bf16"),
    "bf16 resnet": dataclasses.replace(RESNET, precision="bf16"),
    # One step changes the weights by the gradient.
    "clipped": dataclasses.replace(
        GPT, optimizer="sgd", lr=1.0, momentum=0.0, weight_decay=0.0, max_steps=1
    ),
    # Some ranks have a sample more than others, or none in a round.
    "uneven": dataclasses.replace(GPT, **UNEVEN, grad_clip_norm=None, micro_batch_size=2),
    "uneven clipped": dataclasses.replace(GPT, **UNEVEN, micro_batch_size=1),
}
AT_THREE = tuple(case for case in CASES if case != "clipped")
AT_FOUR = ("accumulation", "uneven clipped", "bf16 resnet")
# (number of ranks, case, strategy)
RUNS = [
    *((1, case, "ddp") for case in AT_THREE if case.startswith("uneven")),
    *((2, "clipped", strategy) for strategy in ("ddp", "fsdp")),
    *((3, case, strategy) for case in AT_THREE for strategy in ("ddp", "fsdp")),
    *((4, case, strategy) for case in AT_FOUR for strategy in ("ddp", "hsdp")),
]


class PartlyFrozen(nn.Module):
    """Sizes that no number of ranks divides, a frozen layer, and a parameter of one row.

    Each rank begins with a weight of its own: rank 0's counts.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first, self.frozen, self.last = nn.Linear(3, 7), nn.Linear(7, 5), nn.Linear(5, 1)
        self.frozen.requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(1))
        nn.init.constant_(self.first.bias, dist.get_rank() / 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.frozen(torch.tanh(self.first(x))))
        out: torch.Tensor = self.last(hidden) * self.scale
        return out


class PartlyUnused(PartlyFrozen):
    """With a layer that no rank uses."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(2, 2)


class Branches(nn.Module):
    """Each rank uses another branch; rank 0 uses both of them."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ParameterList([torch.ones(3, 1), torch.ones(3, 2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rank = dist.get_rank()
        used = self.branches if rank == 0 else [self.branches[rank % 2]]
        out: torch.Tensor = sum(x @ each.sum(1, keepdim=True) for each in used)
        return out


def points() -> tuple[Samples, Samples]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(60, 3, generator=generator)
    return Samples(inputs, inputs.sum(1)), Samples(inputs[:7], inputs[:7].sum(1))


def masked(model: nn.Module, batch: Any) -> Sums:
    """The sum over the samples with a positive target, whose number differs."""
    inputs, targets = batch
    is_known = targets > 0
    loss = ((model(inputs).squeeze(-1) - targets).square() * is_known).sum()
    return Sums(loss, is_known.sum(), {})


class Collectives(TorchDispatchMode):
    """Counts the collectives of the block."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self.count[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


class Trained(NamedTuple):
    """What a rank has after some steps; the tensors are whole ones.

    collectives: of the last step. shapes: of the tensors of this rank's optimizer state.
    held_out: the sum over the held-out samples. buffers: at the begin of a further step.
    """

    initial: dict[str, torch.Tensor]
    final: dict[str, torch.Tensor]
    losses: list[float]
    collectives: Counter[str]
    state_sizes: list[int]
    held_out: torch.Tensor
    buffers: dict[str, torch.Tensor]


def whole(module: nn.Module) -> dict[str, torch.Tensor]:
    """The state of a model with whole tensors."""
    values: dict[str, Any] = module.state_dict()
    return {
        name: getattr(value, "full_tensor", lambda value=value: value)().clone()
        for name, value in values.items()
    }


def trained(folder: Path, train: Train, rank: int, world_size: int) -> Trained:
    """Train as this rank."""
    context = context_of(folder, Spec(train=train), place_of(rank, world_size))
    build.set_up_torch(context)
    data = build_data(context)
    replica = build.build_replica(context, data)
    initial, losses = whole(replica.module), []
    batches: Any = data.train_batches
    for step in range(train.max_steps or STEPS):
        num_batches = batches.num_micro_batches(step)
        micro_batches = list(batches.micro_batches(step))
        seeds.seed_generators(step * world_size + rank, CPU)
        with Collectives() as collectives:  # the last step's are kept
            rows = train_step(replica, iter(micro_batches), num_batches, train.lr, train)
        losses.append(float(sum(row[0] for row in rows)))
    final = whole(replica.module)
    replica.strategy.begin_step(replica.module)
    buffers = {name: value.clone() for name, value in replica.module.named_buffers()}
    assert data.held_out is not None
    held_out = evaluate(replica, data.held_out, lambda: None, lambda *_: Agreement(False, False))
    assert held_out is not None
    return Trained(
        initial,
        final,
        losses,
        collectives.count,
        [
            value.numel()
            for values in replica.optimizer.state.values()
            for value in values.values()
            if value.ndim
        ],
        held_out,
        buffers,
    )


def refusal(folder: Path, train: Train, rank: int, world_size: int) -> str:
    """The error at the start."""
    context = context_of(folder, Spec(train=train), place_of(rank, world_size))
    try:
        build.build_replica(context, build_data(context))
    except UserError as error:
        return str(error)
    return ""


def at_three_ranks(folder: Path, rank: int) -> dict[Any, Any]:
    """What depends on the number of ranks, and what is logged."""
    results: dict[Any, Any] = {}
    unused = dataclasses.replace(MASKED, model=f"{__name__}:PartlyUnused", strategy="fsdp")
    results["unused"] = refusal(folder, unused, rank, 3)
    allowed = dataclasses.replace(unused, find_unused_parameters=True)
    results["allowed"] = refusal(folder, allowed, rank, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(FSDPModule, "set_reduce_scatter_unused_params")  # as before torch 2.13
        results["old torch"] = refusal(folder, allowed, rank, 3)
    return results


def in_groups(folder: Path, rank: int) -> dict[Any, Any]:
    """What a rank finds in a group of each size in turn."""
    found: dict[Any, Any] = {}
    for world_size in (1, 2, 3, 4):
        if rank >= world_size:
            continue
        join(folder, rank, world_size)
        # Many parts of small models.
        fsdp.BROADCAST_BYTES = 1000 if world_size == 3 else 2**26
        for run in RUNS:
            if run[0] == world_size:
                size: dict[str, Any] = {"shard_size": 2} if run[2] == "hsdp" else {}
                train = dataclasses.replace(CASES[run[1]], strategy=run[2], **size)
                found[run] = trained(folder, train, rank, world_size)
        if world_size == 3:
            found |= at_three_ranks(folder, rank)
        dist.barrier()
        dist.destroy_process_group()
    return found


def run_ranks(folder: Path) -> list[dict[Any, Any]]:
    """What each of four ranks found."""
    return results(in_groups, folder, 4)
