"""Lightning's Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from tests.bench.peers.task import Peer, Task


def train(task: Task, folder: Path) -> None:
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


PEER = Peer("Lightning", "it saves each epoch, not durably", train, "lightning")
