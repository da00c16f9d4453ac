"""The checkpoints of a run: rank 0 saves the state in a thread; every rank loads it."""

from __future__ import annotations

import functools
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from slurm_job_kit.jobs import installation, records
from slurm_job_kit.jobs.checkpoint_names import checkpoint_name
from slurm_job_kit.jobs.records.frozen import SpecChange
from slurm_job_kit.jobs.records.training import Best, Metric
from slurm_job_kit.trainer.checkpoint import weights
from slurm_job_kit.trainer.checkpoint.read_ahead import ReadAhead
from slurm_job_kit.trainer.checkpoint.share import share
from slurm_job_kit.trainer.checkpoint.staging import Staging, first_not_finite
from slurm_job_kit.trainer.checkpoint.state import (
    STATE,
    SavedState,
    TrainSetup,
    TrainState,
    restore,
)
from slurm_job_kit.trainer.dist.context import broadcast_bytes, gather
from slurm_job_kit.trainer.dist.run_handle import RankContext
from slurm_job_kit.trainer.errors import NotFinite, UserError, storage_error
from slurm_job_kit.trainer.model.build import Data, Replica
from slurm_job_kit.trainer.storage import commit
from slurm_job_kit.trainer.storage.commit import PendingCheckpoint, Retention
from slurm_job_kit.trainer.storage.manifest import BEST, Manifest
from slurm_job_kit.trainer.storage.ownership import check_owner
from slurm_job_kit.trainer.storage.writer import Saved, Writer

POLL_S = 0.5  # between two beats while a save is waited for


class Checkpoints:
    """The checkpoints of a run. All ranks call every method; only rank 0 reads and writes files.

    newest_step: the step of the newest checkpoint that was loaded, or whose save was started.
    """

    def __init__(self, context: RankContext, data: Data) -> None:
        self._context = context
        self._root = context.run.dir.checkpoints
        self._setup = TrainSetup.of(data, context.train)
        self._steps_per_epoch = data.length.steps_per_epoch
        self._staging = Staging()
        self._writer = Writer()
        self.newest_step: int | None = None
        if context.distributed.is_first:
            try:
                self._root.mkdir(exist_ok=True)
                # The temporary files may be those of a newer attempt's save in flight.
                check_owner(context.run)
                commit.remove_leftovers(self._root)
            except OSError as error:
                raise storage_error(error, f"opening {self._root}") from error

    def load(self, replica: Replica, newest: ReadAhead) -> TrainState:
        """Load the newest undamaged checkpoint; return a fresh state if the run has none yet.

        Only rank 0 reads it from the disk. A fresh state has the weights of `train.init_from`, if
        that is set.
        """
        distributed, device = self._context.distributed, self._context.device
        found = newest.wait()
        values = share(None if found is None else found.to_dict(), device)
        if values is None:
            self._load_initial(replica)
            return TrainState(replica.empty_row(), window_names=replica.metric_names)
        saved = SavedState.from_dict(values)
        changes = broadcast_bytes(b"accepted" if self._accepts_changes() else b"", device)
        self._check_setup(saved.setup, is_change_accepted=bool(changes))
        state = restore(saved, replica, distributed)
        if state.window_names == replica.metric_names:
            state.window = state.window.to(device)
        else:  # the user has changed the objective's metrics on request
            state.window, state.window_names = replica.empty_row(), replica.metric_names
            state.epoch_sums = []
        self.newest_step = state.global_step
        return state

    def allocate(self, replica: Replica, state: TrainState) -> None:
        """Begin to allocate the memory that saves need; after a step, when the optimizer has it."""
        if self._context.distributed.is_first:
            saved = SavedState.of(replica, self._setup, state, state.window)
            self._staging.allocate(saved.to_dict())

    def is_any_saving(self) -> bool:
        """Return, on every rank, whether rank 0 has a save in flight."""
        is_busy = torch.tensor([int(self.is_saving())], device=self._context.device)
        return bool(gather(is_busy)[0])

    def save(self, replica: Replica, state: TrainState) -> None:
        """Copy the state and let rank 0's thread commit a checkpoint of it.

        Waits for the save before it, if that is still in flight.
        """
        windows = torch.stack(gather(state.window))
        self.newest_step = state.global_step
        if not self._context.distributed.is_first:
            return
        started = time.monotonic()
        self._writer.wait()
        saved = SavedState.of(replica, self._setup, state, windows)
        # As a dict: Staging copies the tensors of nested containers.
        values, copied = self._staging.take(saved.to_dict())
        parameters = [name for name, _ in replica.module.named_parameters()]
        stall_s = time.monotonic() - started
        self._writer.start(
            self._finish_save, SavedState.from_dict(values), copied, parameters, started, stall_s
        )

    def is_saving(self) -> bool:
        """Return whether a save is in flight; on other ranks than 0 there is none."""
        return self._writer.is_busy_after(0)

    def check(self) -> None:
        """Raise the error of the save in flight, if it failed. Never waits."""
        self._writer.poll()

    def finish(self, beat: Callable[[], None]) -> None:
        """Wait, all ranks together, until the save in flight is committed.

        Calls `beat` every POLL_S seconds: the watchdog must not take a long save for a hang, and
        no collective may last as long as a save.
        """
        is_busy = torch.ones(1, dtype=torch.int64, device=self._context.device)
        while is_busy.item():
            beat()
            is_busy.fill_(self._writer.is_busy_after(POLL_S))  # other ranks have no save in flight
            dist.all_reduce(is_busy, dist.ReduceOp.MAX)

    def point_at_best(self, state: TrainState) -> None:
        """Write the name of the best checkpoint to the file `best`, if it is committed.

        An error is logged and does not end the training: no decision depends on that file alone.
        """
        if self._context.distributed.is_first and state.best:
            self._writer.wait()
            try:
                commit.point_at_best(self._root, state.best["step"])
            except OSError as error:
                self._context.distributed.log(f"cannot write {self._root / BEST}: {error}")

    def completed(self) -> list[Saved]:
        """Return the saves that `check`, `save` or `finish` found committed since the last call."""
        return self._writer.completed()

    def _load_initial(self, replica: Replica) -> None:
        path = self._context.train.init_from
        if path is None:
            return
        distributed = self._context.distributed
        found = weights.read_initial(Path(path)) if distributed.is_first else None
        weights.load_initial(replica.module, share(found, self._context.device), path)
        distributed.log(f"loaded the weights of {path}")

    def _accepts_changes(self) -> bool:
        """Return whether a user confirmed the changes of exactly this spec at a resume."""
        if not self._context.distributed.is_first:
            return False
        changes = records.read_lines(SpecChange, self._context.run.dir.changes)
        return any(change.spec_sha256 == self._spec_sha256() for change in changes)

    def _spec_sha256(self) -> str:
        return hashlib.sha256(self._context.run.spec.to_json().encode()).hexdigest()

    def _check_setup(self, saved: TrainSetup, is_change_accepted: bool) -> None:
        """Refuse a checkpoint of other batches or, unless the user confirmed it, of another spec.

        Raises: UserError.
        """
        now = self._setup
        if saved.global_batch_size != now.global_batch_size:
            raise UserError(_other_batch(saved.global_batch_size, self._context, now))
        if saved.samples_per_epoch != now.samples_per_epoch:
            raise UserError(
                f"the checkpoint was saved with {saved.samples_per_epoch} samples per epoch, this "
                f"start has {now.samples_per_epoch}: bring back the data set of that save, "
                "or begin a new run with train.init_from"
            )
        if saved.data_digest != now.data_digest:
            raise UserError(
                f"the data of train.dataset {now.train['dataset']} differ from those of the save: "
                "bring back the files (or the version of Python whose source they are), or begin "
                "a new run with train.init_from"
            )
        changes = changed_keys(saved.train, now.train)
        if changes and not is_change_accepted:
            raise UserError(
                f"the checkpoint was saved with another spec: {', '.join(changes)}; "
                f"{installation.command('resume', self._context.run.dir.run_id, 'KEY=VALUE')} "
                "shows the changes and accepts --yes"
            )
        for change in changes:
            self._context.distributed.log(f"changed on request: {change}")

    def _finish_save(
        self,
        saved: SavedState,
        copied: torch.cuda.Event | None,
        parameters: Sequence[str],
        started: float,
        stall_s: float,
    ) -> Saved:
        """Commit a copy of the state, in the writer's thread.

        copied: happens when the copy from the GPU is complete.
        started, stall_s: of the save, on the monotonic clock and in seconds.

        Raises: NotFinite, Superseded, StorageError, TransientStorageError.
        """
        if copied is not None:
            copied.synchronize()
        step = saved.state.global_step
        # The parameters only: a buffer may hold infinities, as an attention mask does.
        tensors = {name: saved.model[name] for name in parameters}
        if self._context.train.stop_on_nan and (name := first_not_finite(tensors)):
            raise NotFinite(
                f"{name} is not finite at step {step}: no checkpoint of this step is committed\n"
                "  hint: use a lower train.lr, or train.grad_clip_norm; train.stop_on_nan: false "
                "saves it regardless"
            )
        check_before_rename = functools.partial(check_owner, self._context.run)
        files = {STATE: saved.write}
        pending = PendingCheckpoint(self._manifest(saved), files, check_before_rename)
        nbytes = commit.commit_and_prune(self._root, pending, self._retention(saved.state))
        return Saved(checkpoint_name(step), step, time.monotonic() - started, stall_s, nbytes)

    def _retention(self, state: TrainState) -> Retention:
        checkpoint = self._context.run.spec.checkpoint
        epochs = (checkpoint.keep_every_epochs or 0) * self._steps_per_epoch
        every = tuple(filter(None, (checkpoint.keep_every_steps, epochs)))
        return Retention(checkpoint.keep_last, every, state.best.get("step"))

    def is_kept(self, state: TrainState) -> bool:
        """Return whether a checkpoint of this state is kept at any age."""
        return self._retention(state).keeps(state.global_step)

    def _manifest(self, saved: SavedState) -> Manifest:
        """Return the manifest of a checkpoint, without its files."""
        run, state = self._context.run, saved.state
        return Manifest(
            global_step=state.global_step,
            run_id=run.dir.run_id,
            attempt=run.attempt,
            spec_sha256=self._spec_sha256(),
            world_size=self._context.distributed.world_size,
            global_batch_size=saved.setup.global_batch_size,
            metrics_bytes=state.metrics_bytes,
            metrics=tuple(Metric(name, value) for name, value in state.metrics.items()),
            best=Best(**state.best),
            files=(),
        )


def changed_keys(saved: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return a text for each key of the section `train` that both have with different values."""
    return [
        f"train.{key} was {json.dumps(saved[key])}, is {json.dumps(now[key])}"
        for key in now
        if key in saved and saved[key] != now[key]
    ]


def _other_batch(saved: int, context: RankContext, now: TrainSetup) -> str:
    text = (
        f"the checkpoint was saved with a global batch of {saved}, this start has "
        f"{now.global_batch_size}: set train.global_batch_size to {saved}"
    )
    micro, rest = divmod(saved, context.distributed.world_size * context.train.grad_accum_steps)
    return text if rest else f"{text}, or train.micro_batch_size to {micro}"
