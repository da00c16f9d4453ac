"""Models and data that the trainer's tests name in their specs. No tests in here."""

import atexit
import os
import signal

import torch
import torch.distributed as dist
from torch import nn

from slurm_job_kit.trainer.data.sources import Samples


def blobs(num_train=62, num_test=11):
    """Three noisy classes of small one-channel images."""
    atexit.register(print, "the interpreter is torn down", flush=True)
    generator = torch.Generator().manual_seed(0)
    num = num_train + num_test
    labels = torch.arange(num) % 3
    images = torch.randn(num, 1, 6, 6, generator=generator) + labels[:, None, None, None]
    return (
        Samples(images[:num_train], labels[:num_train]),
        Samples(images[num_train:], labels[num_train:]),
    )


class Troubled(nn.Module):
    """BatchNorm, dropout, parameters in another order than their use, and faults on request.

    The buffer `calls` counts training steps and travels with the checkpoints.
    """

    def __init__(self, signal_at, signal_rank, raise_at, receive_at):
        super().__init__()
        self.signal_step = signal_at.get(os.environ["KIT_ATTEMPT"])
        self.signal_rank = signal_rank
        self.raise_at = raise_at
        self.receive_at = receive_at
        self.head = nn.Linear(128, 3)
        self.dropout = nn.Dropout(0.3)
        self.hidden = nn.Linear(8 * 36, 128)
        self.norm = nn.BatchNorm2d(8)
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.calls: torch.Tensor
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, images):
        if self.training:
            step = int(self.calls)
            self.calls += 1
            if step == self.signal_step and os.environ["RANK"] == str(self.signal_rank):
                os.kill(os.getpid(), signal.SIGUSR1)
            if step == self.raise_at and os.environ["RANK"] == "1":
                raise ValueError("a planted error")
            if step == self.receive_at and os.environ["RANK"] == "1":
                dist.recv(torch.zeros(1), src=0)  # rank 0 sends nothing
        x = torch.relu(self.norm(self.conv(images))).flatten(1)
        return self.head(self.dropout(torch.relu(self.hidden(x))))


def troubled(signal_at=None, signal_rank=0, raise_at=None, receive_at=None):
    """A model that signals itself in one step of each of some attempts."""
    return Troubled(signal_at or {}, signal_rank, raise_at, receive_at)
