"""The rival of the loop's overhead: a DDP loop written by hand, without other features."""

import torch
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from slurm_job_kit.jobs.contract.spec import Train
from slurm_job_kit.trainer.data import data_set
from slurm_job_kit.trainer.data.sources import Samples
from slurm_job_kit.trainer.model import models
from slurm_job_kit.trainer.model.objectives import DataFacts
from tests.bench.place import Place, StepClock


def train(place: Place, spec: Train, num_steps: int, clock: StepClock) -> None:
    """Train for some steps, without checkpoints, stops, logs or a report of the loss.

    Model, data and the fused optimizer are the kit's. Deterministic operators are off.
    """
    torch.use_deterministic_algorithms(False)
    world_size = place.distributed.world_size
    source = data_set.create(spec, place.distributed.rank, world_size).train
    assert isinstance(source, Samples)
    samples = source.to(place.device)
    size = spec.micro_batch_size
    example = samples.batch(torch.zeros(1, dtype=torch.int64))[0]
    torch.manual_seed(0)
    model = models.create(DataFacts(spec, samples.num_classes), example)
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(ddp.parameters(), spec.lr, spec.momentum, fused=True)
    step = 0
    while True:
        order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(step))
        own = order[place.distributed.rank :: world_size]
        for start in range(0, len(samples) // world_size - size + 1, size):
            clock.begin(step)
            if step == num_steps:
                return
            inputs, labels = samples.batch(own[start : start + size])
            cross_entropy(ddp(inputs), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
