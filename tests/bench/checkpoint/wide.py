"""A large model for the benches of saves, and the other ways to save its state."""

import os
import shutil
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict_saver import async_save

from slurm_job_kit.jobs.contract.rundir import fsync_directory
from slurm_job_kit.jobs.contract.spec import Checkpoint, Spec, Train
from slurm_job_kit.trainer.model.replica import Replica
from slurm_job_kit.trainer.training.loop import Loop, train_step

WIDTH = 1250  # 25 million parameters
MEGABYTES = 200  # of state: the weights and their momentum


def sixteen_layers(width: int = WIDTH) -> nn.Module:
    layers = [nn.Linear(width, width) for _ in range(16)]
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), *layers, nn.Linear(width, 10))


def spec_of(max_steps: int, save_every_steps: int | None) -> Spec:
    """A training with a small batch, so that a step takes less time than a save."""
    train = Train(
        model=f"{__name__}:{sixteen_layers.__name__}",
        dataset="digits",
        max_steps=max_steps,
        micro_batch_size=4,
        lr=1e-3,
        eval_every_epochs=None,
    )
    return Spec(train=train, checkpoint=Checkpoint(interval=None, every_steps=save_every_steps))


def do_steps(loop: Loop, num_steps: int) -> None:
    """Optimizer steps of a prepared training, without all else that its loop does."""
    for step in range(num_steps):
        batches = loop.data.train_batches.micro_batches(step)
        train_step(loop.replica, batches, 1, loop.train.lr, loop.train)


def save_durably(state: object, path: Path) -> None:
    """torch.save, fsync and rename: a durable checkpoint without a library."""
    temporary = path.with_suffix(".tmp")
    with open(temporary, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    fsync_directory(path.parent)


class TorchSave:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "plain.pt"

    def save(self, replica: Replica) -> None:
        save_durably(_state(replica), self.path)

    def finish(self) -> None:
        """Nothing is in flight."""


class Dcp:
    """torch.distributed.checkpoint.async_save, with all of its defaults."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._number = folder / "dcp", 0
        self._inflight: Callable[[], object] | None = None

    def save(self, replica: Replica) -> None:
        """Begin to write a new checkpoint, once the one before it is written."""
        self.finish()
        self._number += 1
        saved = async_save(_state(replica), checkpoint_id=self._folder / str(self._number))
        future = saved if isinstance(saved, Future) else saved.upload_completion
        self._inflight = future.result

    def finish(self) -> None:
        """Wait until the checkpoint is written, and remove the one before it."""
        if self._inflight is not None:
            self._inflight()
            self._inflight = None
            shutil.rmtree(self._folder / str(self._number - 1), ignore_errors=True)


def _state(replica: Replica) -> dict[str, Any]:
    return {"model": replica.module.state_dict(), "optimizer": replica.optimizer.state_dict()}
