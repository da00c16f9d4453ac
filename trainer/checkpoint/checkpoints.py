"""The state of a training, saved by rank 0 beside the training and brought back on every rank."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

import torch
import torch.distributed as dist

from jobs.rundir import read_jsonl
from trainer.checkpoint import commit, reader, weights, writer
from trainer.checkpoint.commit import Draft, Retention, Sink
from trainer.checkpoint.ownership import check_owner
from trainer.checkpoint.staging import Staging, first_not_finite
from trainer.checkpoint.weights import STATE, check_same_tensors, parse
from trainer.checkpoint.writer import Saved, Writer
from trainer.data.batches import Batches
from trainer.dist.context import DistributedContext, broadcast_bytes, gather
from trainer.dist.run_handle import Job
from trainer.errors import NotFinite, UserError, storage_error
from trainer.model import optim
from trainer.model.build import Replica

POLL_S = 0.5  # between two signs of life while a save is waited for


@dataclass
class TrainState:
    """Everything a training is, besides weights, buffers and the optimizer.

    loss_window: float64 [1], this rank's sum of losses since the last log line, on the device.
    environments: what the run went through so far, see `environment`.
    window_steps: how many steps' losses that is.
    best: empty, or {"metric", "value", "step"} of the best evaluation.
    """

    loss_window: torch.Tensor
    global_step: int = 0
    window_steps: int = 0
    last_eval_step: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    metrics_bytes: int = 0
    environments: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, Any] = field(default_factory=dict)


class Checkpoints:
    """The checkpoints of a run. `load` and `save` are collective, the rest concerns rank 0."""

    def __init__(self, job: Job, batches: Batches) -> None:
        self._job = job
        self._root = job.run.dir.checkpoints
        self._setup: dict[str, Any] = {
            "global_batch_size": batches.global_batch_size,
            "samples_per_epoch": batches.samples_per_epoch,
            "train": dataclasses.asdict(job.train),
        }
        self._staging = Staging()
        self._parameters: tuple[str, ...] = ()
        self._writer = Writer()
        self.newest_step: int | None = None
        if job.context.is_first:
            try:
                self._root.mkdir(exist_ok=True)
                check_owner(job.run)  # else they may be those of a newer attempt
                commit.remove_leftovers(self._root)
            except OSError as error:
                raise storage_error(error, f"opening {self._root}") from error

    def load(self, replica: Replica) -> TrainState:
        """Load the newest whole checkpoint, read by rank 0 alone; without one a fresh state.

        A fresh state has the weights of `train.init_from`, if that is set.
        """
        context, device = self._job.context, self._job.device
        contents, saved = self._read_newest() if context.is_first else (b"", None)
        contents = broadcast_bytes(contents, device)
        if not contents:
            self._load_initial(replica)
            return TrainState(torch.zeros(1, dtype=torch.float64, device=device))
        saved = saved or parse({STATE: contents})
        changes = broadcast_bytes(b"accepted" if self._accepts_changes() else b"", device)
        self._check_setup(saved, is_change_accepted=bool(changes))
        state = restore(saved, replica, context)
        state.loss_window = state.loss_window.to(device)
        self.newest_step = state.global_step
        return state

    def save(self, replica: Replica, state: TrainState) -> None:
        """Have rank 0 commit a checkpoint of this step; it returns when the state is copied."""
        windows = torch.cat(gather(state.loss_window))
        self.newest_step = state.global_step
        if not self._job.context.is_first:
            return
        started = time.monotonic()
        self._writer.wait()
        self._parameters = tuple(name for name, _ in replica.module.named_parameters())
        saved = {
            "model": replica.module.state_dict(),
            "optimizer": replica.optimizer.state_dict(),
            "optimizer_class": type(replica.optimizer).__name__,
            "scaler": replica.scaler.state_dict(),
            "loss_windows": windows,
            **self._setup,
            **{name: value for name, value in vars(state).items() if name != "loss_window"},
        }
        snapshot, event = self._staging.take(saved)
        work = functools.partial(self._commit, snapshot, event)
        stall_s = time.monotonic() - started
        self._writer.start(lambda: writer.timed(work, snapshot["global_step"], started, stall_s))

    def check(self) -> None:
        """Raise what went wrong in the save in flight, if anything did. Never waits."""
        self._writer.poll()

    def finish(self, beat: Callable[[], None]) -> None:
        """Wait, all ranks together, until the save in flight is committed.

        With a sign of life now and then: a long save is no hang, and no collective lasts long.
        """
        is_busy = torch.ones(1, dtype=torch.int64, device=self._job.device)
        while is_busy.item():
            beat()
            is_busy.fill_(self._writer.is_busy_after(POLL_S))  # never busy on other ranks
            dist.all_reduce(is_busy, dist.ReduceOp.MAX)

    def point_at_best(self, state: TrainState) -> None:
        """Have `best` name the best checkpoint, if it is committed. A hint ends no training."""
        if self._job.context.is_first and state.best:
            self._writer.wait()
            try:
                writer.point_at(self._root, state.best["step"])
            except OSError as error:
                self._job.context.say(f"{self._root / commit.BEST} was not written: {error}")

    def completed(self) -> list[Saved]:
        """What was committed since the last call, as `check`, `save` and `finish` noticed."""
        return self._writer.completed()

    def _read_newest(self) -> tuple[bytes, dict[str, Any] | None]:
        try:
            newest = reader.read_newest_of(self._job.run.dir, parse, self._job.context.say)
        except OSError as error:
            raise storage_error(error, f"loading a checkpoint of {self._root}") from error
        return (newest[0][STATE], newest[1]) if newest else (b"", None)

    def _load_initial(self, replica: Replica) -> None:
        path = self._job.train.init_from
        if path is None:
            return
        context = self._job.context
        data = weights.read_initial(Path(path)) if context.is_first else b""
        weights.load_initial(replica.module, broadcast_bytes(data, self._job.device), path)
        context.say(f"weights of {path}")

    def _accepts_changes(self) -> bool:
        """Whether somebody said yes to what is different in this very spec."""
        if not self._job.context.is_first:
            return False
        changes = read_jsonl(self._job.run.dir.changes)
        return any(change.get("spec_sha256") == self._spec_sha256() for change in changes)

    def _spec_sha256(self) -> str:
        return hashlib.sha256(self._job.run.spec.to_json().encode()).hexdigest()

    def _check_setup(self, saved: dict[str, Any], is_change_accepted: bool) -> None:
        """Refuse a checkpoint that was made with other batches or, unasked, with another spec."""
        if saved["global_batch_size"] != self._setup["global_batch_size"]:
            raise UserError(_other_batch(saved["global_batch_size"], self._job, self._setup))
        if saved["samples_per_epoch"] != self._setup["samples_per_epoch"]:
            raise UserError(
                f"the checkpoint was made with {saved['samples_per_epoch']} samples an epoch, this "
                f"start has {self._setup['samples_per_epoch']}: bring back the data set of then, "
                "or begin a new run with train.init_from"
            )
        changes = changed_keys(saved["train"], self._setup["train"])
        if changes and not is_change_accepted:
            raise UserError(
                f"the checkpoint was made with another spec: {', '.join(changes)}; make resume "
                f"RUN={self._job.run.dir.run_id} SET=... shows it and takes --yes"
            )
        for change in changes:
            self._job.context.say(f"changed on request: {change}")

    def _commit(self, snapshot: dict[str, Any], event: torch.cuda.Event | None) -> int:
        """Commit a snapshot, in the writer's thread; the number of bytes."""
        if event is not None:
            event.synchronize()
        step, wish = snapshot["global_step"], self._job.run.spec.checkpoint
        # Not the buffers: a mask of attention is made of infinities.
        parameters = {name: snapshot["model"][name] for name in self._parameters}
        if self._job.train.stop_on_nan and (name := first_not_finite(parameters)):
            raise NotFinite(
                f"{name} is not finite at step {step}: nothing committed of it\n  hint: a lower "
                "train.lr, or train.grad_clip_norm; train.stop_on_nan: false saves it regardless"
            )
        permit = functools.partial(check_owner, self._job.run)
        draft = Draft(step, {STATE: _serializer(snapshot)}, self._fields(snapshot), permit)
        best_step = snapshot["best"].get("step")
        return writer.save(
            self._root, draft, Retention(wish.keep_last, wish.keep_every_steps, best_step)
        )

    def _fields(self, snapshot: dict[str, Any]) -> dict[str, Any]:
        """What a manifest tells of its checkpoint to those who read no tensors."""
        run, names = self._job.run, ("global_batch_size", "metrics_bytes", "metrics", "best")
        return {
            "run_id": run.dir.run_id,
            "attempt": run.attempt,
            "spec_sha256": self._spec_sha256(),
            "world_size": self._job.context.world_size,
            **{name: snapshot[name] for name in names},
        }


def restore(saved: dict[str, Any], replica: Replica, context: DistributedContext) -> TrainState:
    """Load a saved state into the replica; the rest of it is returned."""
    check_same_tensors(saved["model"], replica.module, "the checkpoint is")
    optimizer_class = type(replica.optimizer).__name__
    if saved["optimizer_class"] != optimizer_class:
        raise UserError(
            f"the checkpoint holds the state of {saved['optimizer_class']}, but train.optimizer is "
            f"{optimizer_class}"
        )
    replica.module.load_state_dict(saved["model"])
    optim.load(replica.optimizer, saved["optimizer"])
    if saved["scaler"]:  # empty where gradients were not scaled
        replica.scaler.load_state_dict(saved["scaler"])
    windows = saved["loss_windows"]
    if len(windows) == context.world_size:
        window = windows[context.rank : context.rank + 1].clone()
    else:
        # The mean over the ranks stays what it was.
        scale = context.world_size / len(windows)
        window = windows.sum(dim=0, keepdim=True) * scale * context.is_first
    names = [each.name for each in dataclasses.fields(TrainState) if each.name != "loss_window"]
    return TrainState(window, **{name: saved[name] for name in names})


def changed_keys(saved: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """The keys of `train` that both have with another value, in words."""
    return [
        f"train.{key} was {json.dumps(saved[key])}, is {json.dumps(now[key])}"
        for key in now
        if key in saved and saved[key] != now[key]
    ]


def _other_batch(saved: int, job: Job, setup: dict[str, Any]) -> str:
    text = (
        f"the checkpoint was made with a global batch of {saved}, this start has "
        f"{setup['global_batch_size']}: set train.global_batch_size to {saved}"
    )
    micro, rest = divmod(saved, job.context.world_size * job.train.grad_accum_steps)
    return text if rest else f"{text}, or train.micro_batch_size to {micro}"


def _serializer(snapshot: dict[str, Any]) -> Any:
    def write(sink: Sink) -> None:
        # Its own checksums take four times as long as the rest of it, and nobody reads them.
        torch.serialization.set_crc32_options(False)
        torch.save(snapshot, cast(IO[bytes], sink))

    return write
