"""The state of a training, saved by rank 0 and brought back on every rank."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass, field
from typing import IO, Any, cast

import torch
from torch import nn

from jobs.rundir import read_json
from trainer import commit
from trainer.build import Replica
from trainer.context import DistributedContext, broadcast_bytes, gather
from trainer.errors import Superseded, UserError
from trainer.launch import Job

STATE = "state.pt"


@dataclass
class TrainState:
    """Everything a training is, besides weights, buffers and the optimizer.

    loss_window: float64 [1], this rank's sum of losses since the last log line, on the device.
    environments: what the run went through so far, see `environment`.
    """

    loss_window: torch.Tensor
    global_step: int = 0
    last_eval_step: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    metrics_bytes: int = 0
    environments: list[dict[str, Any]] = field(default_factory=list)


class Checkpoints:
    """The checkpoints of a run. `load` and `save` are collective."""

    def __init__(self, job: Job, global_batch_size: int) -> None:
        self._job = job
        self._global_batch_size = global_batch_size
        self._root = job.run.dir.checkpoints
        self.newest_step: int | None = None
        if job.context.is_first:
            self._root.mkdir(exist_ok=True)
            commit.remove_leftovers(self._root)

    def load(self, replica: Replica) -> TrainState:
        """Load the newest whole checkpoint, read by rank 0 alone; without one a fresh state."""
        context, contents = self._job.context, b""
        if context.is_first:
            newest = commit.read_newest(self._root, context.say)
            contents = newest[1][STATE] if newest else b""
        contents = broadcast_bytes(contents, self._job.device)
        if not contents:
            return TrainState(torch.zeros(1, dtype=torch.float64, device=self._job.device))
        saved = torch.load(io.BytesIO(contents), map_location=self._job.device, weights_only=True)
        state = restore(saved, replica, context, self._global_batch_size)
        self.newest_step = state.global_step
        return state

    def save(self, replica: Replica, state: TrainState) -> None:
        """Have rank 0 commit a checkpoint of this step."""
        windows = torch.cat(gather(state.loss_window)).cpu()
        self.newest_step = state.global_step
        if not self._job.context.is_first:
            return
        saved = {
            "model": replica.module.state_dict(),
            "optimizer": replica.optimizer.state_dict(),
            "optimizer_class": type(replica.optimizer).__name__,
            "loss_windows": windows,
            "global_batch_size": self._global_batch_size,
            **{name: value for name, value in vars(state).items() if name != "loss_window"},
        }
        commit.commit(
            self._root,
            state.global_step,
            {STATE: lambda sink: torch.save(saved, cast(IO[bytes], sink))},
            self._manifest_fields(state),
            self._check_owner,
        )
        commit.retain(self._root, state.global_step, self._job.run.spec.checkpoint.keep_last)

    def _manifest_fields(self, state: TrainState) -> dict[str, Any]:
        run = self._job.run
        return {
            "run_id": run.dir.run_id,
            "attempt": run.attempt,
            "spec_sha256": hashlib.sha256(run.spec.to_json().encode()).hexdigest(),
            "world_size": self._job.context.world_size,
            "global_batch_size": self._global_batch_size,
            "metrics_bytes": state.metrics_bytes,
            "metrics": state.metrics,
        }

    def _check_owner(self) -> None:
        """A node that was cut off may come back after its job was requeued: it must not commit."""
        run = self._job.run
        owner = read_json(run.dir.owner)
        if owner is not None and owner["attempt"] != run.attempt:
            raise Superseded(
                f"attempt {owner['attempt']} owns {run.dir.path} now, this is attempt "
                f"{run.attempt}: nothing committed"
            )


def restore(
    saved: dict[str, Any], replica: Replica, context: DistributedContext, global_batch_size: int
) -> TrainState:
    """Load a saved state into the replica; the rest of it is returned."""
    _check_same_model(saved["model"], replica.module)
    if saved["global_batch_size"] != global_batch_size:
        text = _other_batch(saved["global_batch_size"], global_batch_size, context.world_size)
        raise UserError(text)
    optimizer_class = type(replica.optimizer).__name__
    if saved["optimizer_class"] != optimizer_class:
        raise UserError(
            f"the checkpoint holds the state of {saved['optimizer_class']}, but train.optimizer is "
            f"{optimizer_class}"
        )
    replica.module.load_state_dict(saved["model"])
    replica.optimizer.load_state_dict(saved["optimizer"])
    windows = saved["loss_windows"]
    if len(windows) == context.world_size:
        window = windows[context.rank : context.rank + 1].clone()
    else:
        window = windows.sum(dim=0, keepdim=True) * context.is_first
    names = ("global_step", "last_eval_step", "metrics", "metrics_bytes", "environments")
    return TrainState(window, **{name: saved[name] for name in names})


def _check_same_model(saved: dict[str, torch.Tensor], module: nn.Module) -> None:
    """Name the first difference between a checkpoint's and the model's tensors as an error."""
    own = module.state_dict()
    for name in [*own, *saved]:
        sides = [
            f"{name} {tuple(state[name].shape)}" if name in state else f"no {name}"
            for state in (saved, own)
        ]
        if sides[0] != sides[1]:
            raise UserError(
                f"the checkpoint is of another model: it has {sides[0]}, train.model has {sides[1]}"
            )


def _other_batch(saved: int, now: int, world_size: int) -> str:
    text = f"the checkpoint was made with a global batch of {saved}, this start has {now}"
    if saved % world_size == 0:
        return f"{text}: set train.micro_batch_size to {saved // world_size}"
    return f"{text}: use a number of ranks that divides {saved}"
