"""Under fsdp no rank reads a byte of a checkpoint twice, or holds more than its share."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from slurm_job_kit.jobs.contract.spec import Train
from slurm_job_kit.trainer.checkpoint import checkpoints as module
from slurm_job_kit.trainer.checkpoint.loading import ReadAhead
from slurm_job_kit.trainer.model.build import build_replica
from slurm_job_kit.trainer.model.training_data import build_data
from slurm_job_kit.trainer.process.context import DistributedContext
from slurm_job_kit.trainer.training.loop import train_step
from tests.bench.checkpoint.load import Memory
from tests.core.ranks import join, results
from tests.plugins.sharded.test_meshes import begin

RANKS, WIDTH, LAYERS = 3, 1024, 12
PARAMETERS = LAYERS * (WIDTH * WIDTH + WIDTH) + 36 * WIDTH + WIDTH
SHARE = 3 * 4 * PARAMETERS / RANKS  # weights and two moments in fp32
BUFFER = 16 * 2**20


def large() -> nn.Module:
    """12.6 million parameters in equal layers: images [n, 1, 6, 6] to scores [n, 3]."""
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    return nn.Sequential(nn.Flatten(), nn.Linear(36, WIDTH), nn.Sequential(*layers), Head())


class Head(nn.Module):
    """The first three values of each row."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values[:, :3]


def attempt(folder: Path, place: DistributedContext, number: int) -> tuple[int, int]:
    """Load the newest checkpoint, do a step, save; return the bytes that the load read and held."""
    train = Train(
        model=f"{__name__}:large",
        dataset="tests.local.stoppable:in_memory",
        micro_batch_size=12,
        global_batch_size=12,
        optimizer="adamw",
        strategy="ddp" if place.world_size == 1 else "fsdp",
    )
    context = begin(folder / "run", train, place, number)
    data, newest = build_data(context), ReadAhead(context)
    replica = build_replica(context, data)
    checkpoints = module.create(context, data)
    memory, before = Memory(), bytes_read()
    state = checkpoints.load(replica, newest)
    sizes = bytes_read() - before, memory.rise_bytes()
    batches = data.train_batches.micro_batches(0)
    train_step(replica, batches, data.train_batches.num_micro_batches(0), 1e-3, train)
    state.global_step = number
    checkpoints.save(replica, state)
    checkpoints.finish(lambda: None)
    data.train_batches.close()
    return sizes


def bytes_read() -> int:
    """The bytes that this process has read from files so far."""
    return int(Path("/proc/self/io").read_text(encoding="ascii").split()[1])


def loads(folder: Path, rank: int) -> list[tuple[int, int]]:
    """(bytes read, bytes held) of two loads: of what one rank has saved, and of what all have."""
    if rank == 0:
        attempt(folder, join(folder, rank, 1), 1)
        dist.destroy_process_group()
    place = join(folder, rank, RANKS)
    sizes = [attempt(folder, place, number) for number in (2, 3)]
    dist.barrier()
    return sizes


@pytest.mark.slow
def test_a_rank_reads_and_holds_its_share(tmp_path):
    for rank, (of_one, of_all) in enumerate(results(loads, tmp_path, RANKS)):
        assert 0.9 * SHARE < of_all[0] < SHARE + BUFFER / 8
        # Rank 0 reads the file of the one rank whole, to check it.
        size = SHARE if rank else RANKS * SHARE
        assert 0.9 * size < of_one[0] < size + BUFFER / 8
        # The weights are there before the load.
        assert max(of_one[1], of_all[1]) < 2 / 3 * SHARE + BUFFER
