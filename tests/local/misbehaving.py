"""Models that do harm during a training, for the specs of the tests. No tests in here."""

import os
import signal
import subprocess
import time

import torch
import torch.distributed as dist
from torch import nn

from slurm_job_kit.jobs.checkpoint import reader


class Misbehaving(nn.Module):
    """Calls `harm` in some steps of some attempts; its buffer counts the steps of the run."""

    def __init__(self, plans, pause_s):
        super().__init__()
        self.plan = plans.get(os.environ["KIT_ATTEMPT"], {})
        self.pause_s = pause_s
        self.norm = nn.BatchNorm2d(1)
        self.hidden = nn.Linear(36, 512)
        self.head = nn.Linear(512, 3)
        self.calls: torch.Tensor
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, images):
        if self.training:
            plan, step = self.plan, int(self.calls)
            self.calls += 1
            if step == plan.get("step") and os.environ["RANK"] == str(plan["rank"]):
                HARMS[plan["harm"]](plan.get("path", plan.get("seconds")))
            time.sleep(self.pause_s)
        return self.head(torch.relu(self.hidden(self.norm(images).flatten(1))))


def misbehaving(plans=None, pause_s=0.0):
    """A model and its harm in each attempt: {"step", "rank", "harm", "path" or "seconds"}."""
    return Misbehaving(plans or {}, pause_s)


def stop(path):
    """Stop the whole process."""
    os.kill(os.getpid(), signal.SIGSTOP)


def loop_for_ever(path):
    """Never return."""
    while True:
        pass


def receive(path):
    """Wait for a message that rank 0 never sends."""
    dist.recv(torch.zeros(1), src=0)


def fill(path):
    """Fill the file system of `path`."""
    with open(os.path.join(path, "filler"), "wb", buffering=0) as file:
        for size in (1 << 16, 1 << 10, 1):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                continue


def make_read_only(path):
    """Make every write below `path` fail."""
    subprocess.run(["mount", "--bind", path, path], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", path], check=True)


def move_away(path):
    """Rename a directory away from its path."""
    os.rename(path, path + "-moved")


def save_slowly(seconds):
    """Take so long to verify a checkpoint; by default far longer than a hang may last."""
    check = reader.check_file

    def slow(path, expected):
        if path.suffix == ".safetensors":  # of the three files of a checkpoint
            time.sleep(seconds or 8)
        check(path, expected)

    reader.check_file = slow


HARMS = {
    "save slowly": save_slowly,
    "stop": stop,
    "loop": loop_for_ever,
    "receive": receive,
    "fill": fill,
    "read-only": make_read_only,
    "move": move_away,
}
