"""Lightning's Fabric."""

from __future__ import annotations

from pathlib import Path

from torch.nn.functional import cross_entropy

from tests.bench.peers.task import Peer, Task
from tests.bench.peers.tutorial import accuracy


def train(task: Task, folder: Path) -> None:
    """The loop of Fabric's guide, with an evaluation and a save after each epoch."""
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu")
    fabric.launch()
    model = task.model()
    model, optimizer = fabric.setup(model, task.optimizer(model))
    batches = fabric.setup_dataloaders(task.batches())
    for epoch in range(task.epochs):
        for inputs, labels in batches:
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs), labels)
            fabric.backward(loss)
            optimizer.step()
        fabric.print(f"epoch {epoch} accuracy {accuracy(model, task)}")
        fabric.save(folder / "checkpoint.pt", {"model": model, "optimizer": optimizer})


PEERS = (
    Peer(
        "Fabric",
        "it saves each epoch, not durably",
        train,
        "lightning",
    ),
)
