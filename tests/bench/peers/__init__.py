"""B5: trainings as users of other libraries write them, each with the library's own defaults."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from slurm_job_kit.jobs.spec import Spec
from slurm_job_kit.trainer.data import data_set
from slurm_job_kit.trainer.data.sources import BYTE_SCALE
from slurm_job_kit.trainer.model import models
from slurm_job_kit.trainer.model.objectives import DataFacts
from tests.bench.checkpoint.wide import save_durably


class Task:
    """A classification like the kit's own, with a DataLoader as in the libraries' guides."""

    def __init__(self, spec: Spec) -> None:
        self.train, self.epochs = spec.train, spec.train.epochs
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
        train(self, folder)
        return time.perf_counter() - self._first_batch

    def model(self) -> nn.Module:
        """A new model, whose first forward pass in a training starts the clock."""
        torch.manual_seed(0)
        facts = DataFacts(self.train, self._num_classes)
        model = models.create(facts, self._data[0].tensors[0][:1])

        def begin(module: nn.Module, inputs: Any) -> None:
            if module.training:
                self._first_batch = time.perf_counter()
                hook.remove()

        hook = model.register_forward_pre_hook(begin)
        return model

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=self.train.lr, momentum=self.train.momentum)

    def batches(self) -> DataLoader[Any]:
        size = self.train.micro_batch_size
        return DataLoader(self._data[0], batch_size=size, shuffle=True, drop_last=True)

    def held_out(self) -> DataLoader[Any]:
        return DataLoader(self._data[1], batch_size=self.train.eval_batch_size)


def _tensors(source: Any) -> TensorDataset:
    inputs, labels = source.batch(torch.arange(len(source)))
    scale = BYTE_SCALE if inputs.dtype == torch.uint8 else 1.0
    return TensorDataset(inputs.float() * scale, labels)


def tutorial(task: Task, folder: Path, has_same_work: bool = False) -> None:
    """`.item()` for the log in each step, `torch.save` after each epoch.

    has_same_work: instead an evaluation after each epoch, and durable saves as often as the kit's.
    """
    ddp = DistributedDataParallel(task.model())
    optimizer, batches = task.optimizer(ddp), task.batches()
    for epoch in range(task.epochs):
        total = 0.0
        for inputs, labels in batches:
            optimizer.zero_grad()
            loss = cross_entropy(ddp(inputs), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch} loss {total / len(batches)}")
        if has_same_work:
            print(f"accuracy {_accuracy(ddp.module, task)}")
        if not has_same_work or epoch + 1 in task.save_after:
            state = {"model": ddp.module.state_dict(), "optimizer": optimizer.state_dict()}
            save = save_durably if has_same_work else torch.save
            save({"epoch": epoch, **state}, folder / "checkpoint.pt")


def _accuracy(model: nn.Module, task: Task) -> float:
    model.eval()
    correct = total = 0
    with torch.no_grad():
        for inputs, labels in task.held_out():
            correct += int((model(inputs).argmax(1) == labels).sum())
            total += len(labels)
    model.train()
    return correct / total


def by_accelerate(task: Task, folder: Path) -> None:
    """The loop of accelerate's examples: an evaluation after each epoch, no checkpoint."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = task.model()
    model, optimizer, batches, held_out = accelerator.prepare(
        model, task.optimizer(model), task.batches(), task.held_out()
    )
    for epoch in range(task.epochs):
        model.train()
        for inputs, labels in batches:
            loss = cross_entropy(model(inputs), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        correct = total = 0
        for inputs, labels in held_out:
            with torch.no_grad():
                predicted = model(inputs).argmax(dim=-1)
            predicted, labels = accelerator.gather_for_metrics((predicted, labels))
            correct += int((predicted == labels).sum())
            total += len(labels)
        accelerator.print(f"epoch {epoch} accuracy {correct / total}")


def by_lightning(task: Task, folder: Path) -> None:
    """`Trainer.fit` with a validation loader; all of its options have their defaults."""
    from lightning.pytorch import LightningModule, Trainer

    class Classifier(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = task.model()

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            inputs, labels = batch
            loss = cross_entropy(self.model(inputs), labels)
            self.log("train_loss", loss)
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            inputs, labels = batch
            scores = self.model(inputs)
            self.log("val_loss", cross_entropy(scores, labels))
            self.log("val_accuracy", (scores.argmax(1) == labels).float().mean())

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return task.optimizer(self)

    trainer = Trainer(accelerator="cpu", max_epochs=task.epochs, default_root_dir=folder)
    trainer.fit(Classifier(), task.batches(), task.held_out())


@dataclass(frozen=True)
class Peer:
    """One way to train, how its work differs from the kit's, and its package, if torch has it not.

    target: of its time for the tiny MLP / the kit's; a CNN's time is nearly all arithmetic.
    """

    name: str
    differs: str
    train: Callable[[Task, Path], None]
    target: float = 1.0
    package: str | None = None


_DDP = "it has DDP, the kit none at one rank"
PEERS = (
    Peer(
        "tutorial's loop", f"it saves each epoch, not durably; no evaluation; {_DDP}", tutorial, 1.9
    ),
    Peer("tutorial's loop, same work", _DDP, partial(tutorial, has_same_work=True)),
    Peer("accelerate", "it saves nothing", by_accelerate, 2.2, "accelerate"),
    Peer("Lightning", "it saves each epoch, not durably", by_lightning, 4.0, "lightning"),
)
