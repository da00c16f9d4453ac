"""Hugging Face's Trainer of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tests.bench.peers.task import Peer, Task


class WithLoss(nn.Module):
    """A model in the form that the Trainer wants: it returns its loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """The loss and the scores of a batch."""
        scores = self.model(inputs)
        return {"loss": cross_entropy(scores, labels), "logits": scores}


def train(task: Task, folder: Path) -> None:
    """`Trainer.train`; what is set is the size of the training and the CPU."""
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=task.epochs,
        per_device_train_batch_size=task.train.micro_batch_size,
        use_cpu=True,
        report_to="none",
    )
    model = WithLoss(task.model())
    optimizer = task.optimizer(model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=task.samples,
        data_collator=_collate,
        optimizers=(optimizer, schedule),
    )
    trainer.train()


def _collate(samples: list[Any]) -> dict[str, torch.Tensor]:
    inputs, labels = zip(*samples, strict=True)
    return {"inputs": torch.stack(inputs), "labels": torch.stack(labels)}


PEERS = (
    Peer(
        "Hugging Face Trainer",
        "it evaluates nothing, and saves each 500 steps, not durably",
        train,
        "transformers",
    ),
)
