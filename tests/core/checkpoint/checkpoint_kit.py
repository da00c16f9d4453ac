"""Jobs, small replicas and saved states for the tests of this folder. No tests in here."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from slurm_job_kit.jobs.contract.spec import Checkpoint, Spec, Train
from slurm_job_kit.trainer.checkpoint.checkpoints import Checkpoints
from slurm_job_kit.trainer.checkpoint.digest import optimizer_sha256, weights_sha256
from slurm_job_kit.trainer.checkpoint.loading import ReadAhead
from slurm_job_kit.trainer.checkpoint.saved_state import TrainState
from slurm_job_kit.trainer.strategy.interface import Strategy
from tests.core.ranks import CPU, context_of, place_of


def data_of(global_batch_size=12, samples_per_epoch=96, digest=None):
    """The sizes of a data set, as `Checkpoints` compares them."""
    length = SimpleNamespace(global_batch_size=global_batch_size, steps_per_epoch=8)
    batches = SimpleNamespace(samples_per_epoch=samples_per_epoch)
    data: Any = SimpleNamespace(length=length, train_batches=batches, digest=digest)
    return data


BATCHES = data_of()


def job_of(path, keep=None, **train):
    spec = Spec(train=Train(**train), checkpoint=keep or Checkpoint())
    context = context_of(path, spec)
    run_dir = context.run.dir
    run_dir.checkpoints.mkdir(parents=True, exist_ok=True)
    run_dir.owner.write_text('{"job_id": "7", "attempt": 1}')
    run_dir.spec.write_text(spec.to_json())
    return dataclasses.replace(context, run=dataclasses.replace(context.run, job_id="7"))


def replica_of(seed=0, width=3, optimizer=torch.optim.AdamW, scaler="cpu"):
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(2, width), nn.BatchNorm1d(width), nn.Linear(width, 2))
    scaler = torch.amp.GradScaler(scaler, enabled=scaler is not None)
    replica = SimpleNamespace(
        wrapped=module,
        module=module,
        strategy=Strategy(Train(), place_of(), CPU),
        optimizer=optimizer(module.parameters(), lr=0.1),
        precision=SimpleNamespace(scaler=scaler),
        metric_names=("accuracy",),
        empty_row=lambda: torch.zeros(3, dtype=torch.float64),
    )
    train(replica)
    return replica


def train(replica):
    replica.module(torch.randn(5, 2)).square().sum().backward()
    replica.optimizer.step()


def state_at(step, **more):
    window = torch.tensor([step / 3, step, 1.0], dtype=torch.float64)
    names = ("accuracy",)
    return TrainState(window, step, names, metrics={"train_loss": step / 7}, **more)


def bits(replica):
    return weights_sha256(replica), optimizer_sha256(replica)


def save(context, replica, step, **more):
    checkpoints = Checkpoints(context, BATCHES)
    checkpoints.save(replica, state_at(step, **more))
    checkpoints.finish(lambda: None)


def loaded(context, replica):
    newest = ReadAhead(context)  # before the folder is made again, as in a start
    return Checkpoints(context, BATCHES).load(replica, newest)


def saved_values(replica, **changes):
    state = dataclasses.asdict(state_at(6))
    return {
        "model": replica.module.state_dict(),
        "optimizer": replica.optimizer.state_dict(),
        "optimizer_class": "AdamW",
        "scaler": {},
        "windows": torch.tensor([[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]], dtype=torch.float64),
        "global_batch_size": 12,
        "samples_per_epoch": 96,
        "data_digest": None,
        "train": {},
        **{name: value for name, value in state.items() if name != "window"},
        **changes,
    }
