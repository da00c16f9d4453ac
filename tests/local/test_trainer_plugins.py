"""The model and the data that the trainer's tests name in their specs. No tests in here."""

import atexit
import os
import sys

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

    def __init__(self, raise_at=None):
        super().__init__()
        self.layers = parts.perceptron()
        self.calls, self.raise_at = -1, raise_at  # a throw-away pass

    def forward(self, inputs):
        self.calls += self.training
        if os.environ["RANK"] == "1" and self.calls == self.raise_at:
            raise ValueError("a planted error")
        return self.layers(inputs)
