"""A large model for the benches of saves, and a save of its state without the kit."""

import os
from pathlib import Path

import torch
from torch import nn

from slurm_job_kit.jobs.base.files import fsync_directory
from slurm_job_kit.jobs.contract.spec import Checkpoint, Spec, Train
from slurm_job_kit.trainer.model.replica import Replica

WIDTH = 1250  # 25 million parameters; 200 MB with their momentum


def sixteen_layers(width: int = WIDTH) -> nn.Module:
    layers = [nn.Linear(width, width) for _ in range(16)]
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), *layers, nn.Linear(width, 10))


def spec_of(max_steps: int) -> Spec:
    """A training with a small batch, so that a step takes less time than a save. It saves none."""
    train = Train(
        model=f"{__name__}:{sixteen_layers.__name__}",
        dataset="digits",
        max_steps=max_steps,
        micro_batch_size=4,
        lr=1e-3,
        eval_every_epochs=None,
    )
    return Spec(train=train, checkpoint=Checkpoint(interval=None))


class TorchSave:
    """torch.save, fsync and rename: a durable checkpoint without a library."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "plain.pt"

    def save(self, replica: Replica) -> None:
        state = {"model": replica.module.state_dict(), "optimizer": replica.optimizer.state_dict()}
        temporary = self.path.with_suffix(".tmp")
        with open(temporary, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.path)
        fsync_directory(self.path.parent)
