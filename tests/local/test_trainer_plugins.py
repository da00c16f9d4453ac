"""Models and data that the trainer's tests name in their specs. No tests in here."""

import atexit
import itertools
import os
import signal
import sys
from pathlib import Path

import torch
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


def blobs_after_a_hang():
    """The blobs; in the first attempt the whole process of rank 1 stops before it returns them."""
    if os.environ["KIT_ATTEMPT"] == "1" and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGSTOP)
    return blobs()


class Recorded(Samples):
    """Samples that write the indices of each batch to a file of this rank and attempt."""

    folder = ""

    def batch(self, indices):
        name = f"{os.environ['KIT_ATTEMPT']}-{os.environ['RANK']}"
        with open(os.path.join(self.folder, name), "a") as file:
            print(*indices.tolist(), file=file)
        return super().batch(indices)


def recorded_blobs(folder):
    """The blobs; `folder` records the samples of the training."""
    train, test = blobs()
    Recorded.folder = folder
    return Recorded(train.inputs, train.labels), test


class Troubled(nn.Module):
    """BatchNorm, dropout, parameters in another order than their use, and faults on request.

    The buffer `calls` counts training steps and travels with the checkpoints.
    """

    def __init__(self, signal_at, signal_rank, raise_at, kill_at_fsync):
        super().__init__()
        if os.environ["RANK"] == "0" and os.environ["KIT_ATTEMPT"] == "1" and kill_at_fsync:
            die_at_fsync(kill_at_fsync)
        self.signal_step = signal_at.get(os.environ["KIT_ATTEMPT"])
        self.signal_rank = signal_rank
        self.raise_at = raise_at
        self.head = nn.Linear(128, 3)
        self.dropout = nn.Dropout(0.3)
        self.hidden = nn.Linear(8 * 36, 128)
        self.norm = nn.BatchNorm2d(8)
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.calls: torch.Tensor
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        if self.signal_step == "startup":
            self.signal_self()

    def forward(self, images):
        if self.training:
            step = int(self.calls)
            self.calls += 1
            if step == self.signal_step:
                self.signal_self()
            if step == self.raise_at and os.environ["RANK"] == "1":
                raise ValueError("a planted error")
        x = torch.relu(self.norm(self.conv(images))).flatten(1)
        return self.head(self.dropout(torch.relu(self.hidden(x))))

    def signal_self(self):
        if os.environ["RANK"] == str(self.signal_rank):
            os.kill(os.getpid(), signal.SIGUSR1)


def die_at_fsync(number):
    """Kill this process at its n-th fsync, which is in the middle of a save."""
    fsync, calls = os.fsync, itertools.count(1)

    def counted(fd):
        if next(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        fsync(fd)

    os.fsync = counted


def troubled(signal_at=None, signal_rank=0, raise_at=None, kill_at_fsync=None):
    """A model that signals itself in one step ("startup": before all) of each of some attempts."""
    return Troubled(signal_at or {}, signal_rank, raise_at, kill_at_fsync)


class Recorder(nn.Module):
    """Scores from inputs that are sample numbers, which it records; one buffer per rank."""

    def __init__(self, rank):
        super().__init__()
        self.seen: list[int] = []
        self.offset: torch.Tensor
        self.register_buffer("offset", torch.tensor(float(rank)))

    def forward(self, numbers):
        self.seen += numbers.flatten().long().tolist()
        return torch.cat([numbers * 0.1, torch.ones_like(numbers) + self.offset], dim=1)


class Numbers:
    """A per-sample set of the numbers from 0 to 10."""

    num_classes = 2

    def __len__(self):
        return 11

    def __getitem__(self, index):
        return torch.tensor([float(index)]), int(index > 6)


def evaluate_at_each_world_size(rank, folder):
    """As one of three ranks: evaluate alone, in twos and in threes; print the samples."""
    import torch.distributed as dist

    from slurm_job_kit.jobs.rundir import RunDir
    from slurm_job_kit.jobs.spec import Launch, Spec
    from slurm_job_kit.trainer.data.feed import HeldOut
    from slurm_job_kit.trainer.events import Events
    from slurm_job_kit.trainer.model.evaluate import evaluate
    from slurm_job_kit.trainer.model.objectives import Classification, DataFacts
    from slurm_job_kit.trainer.process.context import DistributedContext
    from slurm_job_kit.trainer.process.run_handle import RankContext, RunHandle

    whole = Samples(torch.arange(11.0).unsqueeze(1), (torch.arange(11) > 6).long())
    run = RunHandle(RunDir(Path(folder)), Spec(launch=Launch(num_workers=1)), attempt=1)
    for world_size in (1, 2, 3):
        if rank < world_size:
            store = dist.FileStore(f"{folder}/store-{world_size}", world_size)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
            distributed = DistributedContext(rank, rank, 0, world_size, world_size, "here")
            context = RankContext(run, distributed, torch.device("cpu"), Events(rank))
            for test in (whole, Numbers()):
                model, held_out = Recorder(rank), HeldOut(test, None, context)
                objective = Classification(DataFacts("numbers", num_classes=2))

                def row_of(batch, objective=objective, model=model):
                    return objective(model, batch).row()

                sums = torch.zeros(3, dtype=torch.float64)
                sums_found = evaluate(model, held_out, row_of, sums, lambda: None)
                values = () if sums_found is None else sums_found.tolist()
                held_out.close()
                name = f"seen-{type(test).__name__}-{world_size}-{rank}"
                with open(f"{folder}/{name}", "w") as file:
                    print(*values, *model.seen, file=file)
            dist.destroy_process_group()


def main():
    """Fork three ranks; each evaluates, and writes to the folder that the command line names."""
    from torch.multiprocessing.spawn import start_processes

    start_processes(evaluate_at_each_world_size, (sys.argv[1],), 3, start_method="fork")
