"""The training that each peer does: the same model, data, batches and optimizer as the kit's."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from slurm_job_kit.jobs.spec import Spec, Train
from slurm_job_kit.trainer.data import data_set
from slurm_job_kit.trainer.data.sources import BYTE_SCALE
from slurm_job_kit.trainer.model import models
from slurm_job_kit.trainer.model.objectives import DataFacts


class Task:
    """A classification, with tensors in memory and a DataLoader as in the libraries' guides."""

    def __init__(self, spec: Spec) -> None:
        """`spec`: the kit's own."""
        self.train: Train = spec.train
        self.epochs, self.lr, self.momentum = spec.train.epochs, spec.train.lr, spec.train.momentum
        # Both are tensors in memory, whole batches of which can be taken.
        sources: Any = data_set.create(spec.train, 0, 1)[:2]
        self._data = [_tensors(source) for source in sources]
        self._num_classes = sources[0].num_classes
        self.save_after: Sequence[int] = ()  # epochs; those of the kit's own checkpoints
        self._first_batch = 0.0

    def seconds(self, train: Callable[[Task, Path], None], folder: Path) -> float:
        """Train, in a new folder; the seconds from the first batch to the end."""
        folder.mkdir()
        torch.use_deterministic_algorithms(False)  # the kit has set it, and it takes time
        self._first_batch = 0.0
        train(self, folder)
        return time.perf_counter() - self._first_batch

    def model(self) -> nn.Module:
        """A new model, whose first forward pass in a training starts the clock."""
        example = self._data[0].tensors[0][:1]
        torch.manual_seed(0)
        model = models.create(DataFacts(self.train, self._num_classes), example)

        def begin(module: nn.Module, inputs: Any) -> None:
            if module.training:
                self._first_batch = time.perf_counter()
                hook.remove()

        hook = model.register_forward_pre_hook(begin)
        return model

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """SGD as a user creates it."""
        return torch.optim.SGD(model.parameters(), lr=self.lr, momentum=self.momentum)

    def batches(self) -> DataLoader[Any]:
        """Shuffled batches of the training data."""
        size = self.train.micro_batch_size
        return DataLoader(self._data[0], batch_size=size, shuffle=True, drop_last=True)

    def held_out(self) -> DataLoader[Any]:
        """Batches of the held-out data."""
        return DataLoader(self._data[1], batch_size=self.train.eval_batch_size)


@dataclass(frozen=True)
class Peer:
    """One way to train.

    less: what the kit does less or differently than this one, or this one than the kit.
    package: that must be installed; None: torch alone.
    """

    name: str
    less: str
    train: Callable[[Task, Path], None]
    package: str | None = None


def _tensors(source: Any) -> TensorDataset:
    inputs, labels = source.batch(torch.arange(len(source)))
    scale = BYTE_SCALE if inputs.dtype == torch.uint8 else 1.0
    return TensorDataset(inputs.float() * scale, labels)
