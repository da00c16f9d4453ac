"""As one of several ranks: load a checkpoint, and measure what this rank reads and holds.

    python -c "from tests.rooms.sharded import shares; shares.main()" RANKS FOLDER

One rank saves a large model under ddp; then RANKS load that under fsdp and save it, and load what
they have saved. FOLDER/found-RANK.json has the bytes of both loads.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from slurm_job_kit.jobs import records
from slurm_job_kit.jobs.records.frozen import SpecChange
from slurm_job_kit.jobs.rundir import RunDir, write_json
from slurm_job_kit.jobs.spec import Launch, Spec, Train
from slurm_job_kit.trainer.checkpoint import checkpoints as module
from slurm_job_kit.trainer.checkpoint.loading import ReadAhead
from slurm_job_kit.trainer.checkpoint.setup import spec_sha256
from slurm_job_kit.trainer.events import Events
from slurm_job_kit.trainer.loop import train_step
from slurm_job_kit.trainer.model.build import build_replica
from slurm_job_kit.trainer.model.training_data import build_data
from slurm_job_kit.trainer.process.context import DistributedContext
from slurm_job_kit.trainer.process.run_handle import RankContext, RunHandle
from tests.bench.checkpoint.load import Memory
from tests.local import forked_ranks
from tests.local.forked_ranks import CPU

WIDTH, LAYERS = 1024, 12


def large() -> nn.Module:
    """12.6 million parameters in equal layers: images [n, 1, 6, 6] to scores [n, 3]."""
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    return nn.Sequential(nn.Flatten(), nn.Linear(36, WIDTH), nn.Sequential(*layers), Head())


class Head(nn.Module):
    """The first three values of each row."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Scores [n, 3]."""
        return values[:, :3]


def attempt(place: DistributedContext, run: RunDir, number: int) -> dict[str, int]:
    """Load the newest checkpoint, do a step, save; return what the load took on this rank."""
    strategy = "ddp" if place.world_size == 1 else "fsdp"
    train = Train(
        model="tests.rooms.sharded.shares:large",
        dataset="tests.local.stoppable:in_memory",
        micro_batch_size=12,
        global_batch_size=12,
        optimizer="adamw",
        strategy=strategy,
    )
    handle = RunHandle(run, Spec(launch=Launch(stop_check_steps=1), train=train), number)
    if place.is_first:
        run.attempt(number).path.mkdir(parents=True)
        run.checkpoints.mkdir(exist_ok=True)
        write_json(run.owner, {"attempt": number})
        records.append(run.changes, SpecChange(0.0, (), spec_sha256(handle)))
    dist.barrier()
    context = RankContext(handle, place, CPU, Events(place.rank))
    data, newest = build_data(context), ReadAhead(context)
    replica = build_replica(context, data)
    checkpoints = module.create(context, data)
    memory, before = Memory(), bytes_read()
    state = checkpoints.load(replica, newest)
    sizes = {"read": bytes_read() - before, "rise": memory.rise_bytes()}
    batches = data.train_batches.micro_batches(0)
    train_step(replica, batches, data.train_batches.num_micro_batches(0), 1e-3, train)
    state.global_step = number
    checkpoints.save(replica, state)
    checkpoints.finish(lambda: None)
    data.train_batches.close()
    return sizes


def bytes_read() -> int:
    """The bytes that this process has read from files so far."""
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return int(lines[0].removeprefix("rchar: "))


def be_rank(rank: int, world_size: int, port: int, folder: Path) -> None:
    """Do the attempts of a world as one of its ranks."""
    context, run = forked_ranks.join(rank, world_size, port), RunDir(folder / "run")
    numbers = (1,) if world_size == 1 else (2, 3)
    sizes = [attempt(context, run, number) for number in numbers]
    write_json(folder / f"found-{rank}.json", sizes)
    dist.barrier()
    os._exit(0)


def main() -> None:
    """Fork one rank, then all."""
    for world_size in (1, int(sys.argv[1])):
        forked_ranks.fork(be_rank, world_size, Path(sys.argv[2]))
