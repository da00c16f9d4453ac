"""Hugging Face accelerate."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from tests.bench.peers.task import Peer, Task


def train(task: Task, folder: Path) -> None:
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


PEER = Peer("accelerate", "it saves nothing", train, "accelerate")
