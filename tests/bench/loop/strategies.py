"""B18: memory, saves and collectives of each strategy, 99 million parameters on four ranks."""

import ctypes
import dataclasses
from collections import Counter

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from slurm_job_kit.jobs.spec import Checkpoint, Spec, Train
from slurm_job_kit.trainer.loop import Loop, train_step
from slurm_job_kit.trainer.run import prepare
from tests.bench.checkpoint.load import Memory
from tests.bench.place import Place
from tests.bench.rounds import Figure, timed

TRAIN = Train(
    objective="language_model",
    model="gpt",
    model_args={"n_layer": 14, "n_head": 12, "n_embd": 768},
    dataset="python_source",
    dataset_args={"block_size": 16, "max_bytes": 200_000},
    micro_batch_size=1,
    grad_accum_steps=2,
    optimizer="adamw",
    grad_clip_norm=1.0,
    max_steps=100,
    eval_every_epochs=None,
)
STRATEGIES = ("ddp", "fsdp", "hsdp")
SAVES = 3
M_MMAP_THRESHOLD = -3  # Source: malloc.h of glibc
MEBIBYTE = 2**20


def measure(place: Place) -> list[Figure]:
    """For each strategy the memory of the largest rank, and the times of a save on rank 0.

    By default glibc keeps freed blocks of up to 32 MiB, which hides what a strategy frees.
    """
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_THRESHOLD, MEBIBYTE)
    return [figure for strategy in STRATEGIES for figure in _figures(place, strategy)]


def _train(strategy: str) -> Train:
    shard_size = 2 if strategy == "hsdp" else None
    return dataclasses.replace(TRAIN, strategy=strategy, shard_size=shard_size)


def _trained(place: Place, train: Train) -> tuple[Loop, float]:
    """Train two steps; return the most memory that a rank held since, in bytes."""
    memory = Memory()
    loop = prepare(place.context(Spec(train=train, checkpoint=Checkpoint(interval=None))))
    _steps(loop, 2)
    return loop, _largest(memory.rise_bytes())


def _figures(place: Place, strategy: str) -> list[Figure]:
    memory = Memory()
    loop, peak = _trained(place, _train(strategy))
    trained = _largest(memory.held_bytes())
    loop.checkpoints.allocate(loop.replica, loop.state)
    counts = _collectives(loop)
    stalls, seconds = [], []
    for _ in range(SAVES):
        loop.state.global_step += 1
        dist.barrier()

        def save() -> None:
            stalls.append(timed(lambda: loop.checkpoints.save(loop.replica, loop.state)))
            loop.checkpoints.finish(lambda: None)

        seconds.append(timed(save))
    loop.close()
    kinds = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    collectives = f"{strategy}: collectives of a step of two micro batches: {kinds}"
    return [
        _reported(f"{strategy}: memory of a rank after two steps", trained / MEBIBYTE, "MiB"),
        _reported(f"{strategy}: the most that a rank held until then", peak / MEBIBYTE, "MiB"),
        _reported(f"{strategy}: stall of a save", min(stalls), "s"),
        _reported(f"{strategy}: save to commit", min(seconds), "s"),
        _reported(collectives, counts.total()),
    ]


def _reported(what: str, value: float, unit: str = "") -> Figure:
    return Figure(what, value, None, unit=unit)


def _steps(loop: Loop, count: int) -> None:
    for step in range(count):
        batches = loop.data.train_batches
        micro_batches = batches.micro_batches(step)
        train_step(loop.replica, micro_batches, batches.num_micro_batches(step), TRAIN.lr, TRAIN)


def _largest(value: int) -> float:
    largest = torch.tensor([value])
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return float(largest.item())


def _collectives(loop: Loop) -> Counter[str]:
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        _steps(loop, 1)
    names = [event.name for event in profiler.events() or ()]
    return Counter(name.removeprefix("c10d::") for name in names if name.startswith("c10d::"))
