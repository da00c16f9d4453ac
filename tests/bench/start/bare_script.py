"""A DDP script as people write it, which ends after its first step: the peer of `first_step`.

Prints the time of the end of that step, in seconds since the epoch.
"""

import os
import time

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    dist.init_process_group("gloo")
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    data = TensorDataset(images, torch.tensor(digits.target))
    loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data))
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)),
    )
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    inputs, labels = next(iter(loader))
    nn.functional.cross_entropy(ddp(inputs), labels).backward()
    optimizer.step()
    print(time.time(), flush=True)
    # The tear-down of a process group may hang: it waits for the threads of gloo (torch 2.13).
    os._exit(0)


if __name__ == "__main__":
    main()
