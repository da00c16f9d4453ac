"""What the trainings of this folder share: a model, made-up data, and a record of the samples."""

import os
import random
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

ATTEMPT = os.environ.get("KIT_ATTEMPT", "0")
RANK, RANKS = os.environ["RANK"], int(os.environ["WORLD_SIZE"])
LOCAL_RANKS = int(os.environ["LOCAL_WORLD_SIZE"])
NODES = RANKS // LOCAL_RANKS
EPOCHS, STEPS_PER_EPOCH, BATCH_SIZE = 3, 12, 4
TOTAL = EPOCHS * STEPS_PER_EPOCH
NUM_SAMPLES = STEPS_PER_EPOCH * BATCH_SIZE * RANKS
PACE_FILE = os.environ.get("PACE_FILE")  # seconds of each step, so that a test can stop in one


class Points(torch.utils.data.Dataset):
    """Points on a plane, and the number of each sample."""

    def __init__(self):
        generator = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(NUM_SAMPLES, 8, generator=generator)
        self.targets = self.inputs.sum(dim=1, keepdim=True)

    def __len__(self):
        return NUM_SAMPLES

    def __getitem__(self, index):
        return {"index": index, "inputs": self.inputs[index], "targets": self.targets[index]}


class Net(nn.Module):
    """Layers with dropout; the loss depends on Python's and NumPy's generators, too."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 1))

    def forward(self, index, inputs, targets):
        with open(f"samples-{ATTEMPT}-{RANK}.txt", "a") as file:
            print(*index.tolist(), file=file)
        if PACE_FILE:
            time.sleep(float(Path(PACE_FILE).read_text()))
        noise = random.random() + np.random.rand()
        return (self.layers(inputs) - targets * (1 + 0.1 * noise)).square().mean()


def optimizer_and_scheduler(model):
    """Adam with a learning rate that follows a cosine."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, TOTAL)


def begin(net_class=Net):
    """Return the model; seed the generators of each rank, and print its pid for the tests."""
    torch.manual_seed(0)
    net, seed = net_class(), 10 + int(RANK)
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    print(f"pid {os.getpid()}", flush=True)
    return net


def finish(model):
    """Rank 0 saves the final weights."""
    if RANK == "0":
        torch.save(model.state_dict(), Path("final.pt"))
