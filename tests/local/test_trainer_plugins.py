"""The model and the data that the trainer's tests name in their specs. No tests in here."""

import atexit
import os
import sys

import torch
import torch.distributed as dist
from torch import nn

from tests import parts


def table():
    """A small table; says when the interpreter that has it is torn down."""
    atexit.register(print, "the interpreter is torn down", flush=True)
    return parts.table(62, 11)


def table_by_name():
    """A table; says whether hash() of a text is another one in each process."""
    print("hash() is random:", bool(sys.flags.hash_randomization), flush=True)
    return parts.table()


class Troubled(nn.Module):
    """A perceptron that fails on rank 1 at a step on request."""

    def __init__(self, raise_at=None, receive_at=None):
        super().__init__()
        self.layers = parts.perceptron()
        self.calls, self.raise_at, self.receive_at = -1, raise_at, receive_at  # a throw-away pass

    def forward(self, inputs):
        self.calls += self.training
        if os.environ["RANK"] == "1" and self.calls == self.raise_at:
            raise ValueError("a planted error")
        if os.environ["RANK"] == "1" and self.calls == self.receive_at:
            dist.recv(torch.zeros(1), src=0)  # rank 0 sends nothing
        return self.layers(inputs)
