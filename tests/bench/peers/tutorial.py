"""The loop of the DDP tutorials, and the same loop with the work that the kit does by default."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from slurm_job_kit.jobs.rundir import fsync_directory
from tests.bench.peers.task import Peer, Task


def as_written(task: Task, folder: Path) -> None:
    """`.item()` for the log in each step, `torch.save` after each epoch."""
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
        state = {"epoch": epoch, "model": ddp.module.state_dict()}
        torch.save({**state, "optimizer": optimizer.state_dict()}, folder / "checkpoint.pt")


def same_work(task: Task, folder: Path) -> None:
    """Besides, an evaluation after each epoch, and durable saves after the epochs of the kit's."""
    ddp = DistributedDataParallel(task.model())
    optimizer, batches = task.optimizer(ddp), task.batches()
    for epoch in range(task.epochs):
        for inputs, labels in batches:
            optimizer.zero_grad()
            loss = cross_entropy(ddp(inputs), labels)
            loss.backward()
            optimizer.step()
            loss.item()
        print(f"epoch {epoch} accuracy {accuracy(ddp.module, task)}")
        if epoch + 1 in task.save_after:
            save_durably(ddp.module, optimizer, folder)


def accuracy(model: nn.Module, task: Task) -> float:
    """The share of the held-out samples that a model classifies correctly."""
    model.eval()
    correct = total = 0
    with torch.no_grad():
        for inputs, labels in task.held_out():
            correct += int((model(inputs).argmax(1) == labels).sum())
            total += len(labels)
    model.train()
    return correct / total


def save_durably(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    """Replace the checkpoint, so that a crash leaves the old or the new one."""
    temporary = folder / "checkpoint.tmp"
    with open(temporary, "wb") as file:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, folder / "checkpoint.pt")
    fsync_directory(folder)


PEERS = (
    Peer(
        "tutorial's loop",
        "it saves each epoch, not durably; no evaluation; it has DDP, the kit none at one rank",
        as_written,
    ),
    Peer("tutorial's loop, same work", "it has DDP, the kit none at one rank", same_work),
)
