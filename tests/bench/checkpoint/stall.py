"""B8: how long a durable checkpoint interrupts the training."""

from __future__ import annotations

import os

import torch
from torch import nn

from slurm_job_kit.jobs.rundir import fsync_directory
from slurm_job_kit.jobs.spec import Spec, Train
from slurm_job_kit.trainer.run import prepare
from tests.bench.place import Place
from tests.bench.rounds import Figure, Target, interleaved, milliseconds, ratio, timed

WIDTH = 1250


def sixteen_layers() -> nn.Module:
    """25 million parameters; with the momentum 200 MB of state."""
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(16)]
    return nn.Sequential(nn.Flatten(), nn.Linear(64, WIDTH), *layers, nn.Linear(WIDTH, 10))


def measure(place: Place) -> list[Figure]:
    """Seconds until the training continues: torch.save, fsync and rename / the kit's save.

    The kit's first save of a run allocates its memory; it is the warm-up. The next one begins
    when no save is in flight, as in any training that does not save all the time.
    """
    model = f"{__name__}:{sixteen_layers.__name__}"
    context = place.context(Spec(train=Train(model=model, dataset="digits")))
    loop = prepare(context)
    replica, state, checkpoints = loop.replica, loop.state, loop.checkpoints
    path = place.folder / "plain.pt"

    def plain() -> None:
        saved = {"model": replica.module.state_dict(), "optimizer": replica.optimizer.state_dict()}
        with open(path.with_suffix(".tmp"), "wb") as file:
            torch.save(saved, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(path.with_suffix(".tmp"), path)
        fsync_directory(place.folder)

    def kit() -> float:
        state.global_step += 1
        took_s = timed(lambda: checkpoints.save(replica, state))
        checkpoints.finish(lambda: None)
        return took_s

    times = interleaved({"torch.save": lambda: timed(plain), "kit": kit})
    loop.close()
    sizes = f"{path.stat().st_size / 1e6:.0f} MB"
    stalls = f"{milliseconds(times['torch.save'])} / {milliseconds(times['kit'])}"
    what = f"stall for {sizes}: torch.save, fsync, rename / kit ({stalls})"
    return [ratio(what, times["torch.save"], times["kit"], Target(">=", 9))]
