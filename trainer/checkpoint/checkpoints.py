"""The checkpoints of a run: threads save the state beside the training; every rank loads it."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist

from ..contract import BEST, Best, HashedSink, Manifest, NamedFile, part_name, point_at_best
from ..errors import NotFinite, storage
from ..model import optim
from ..model.replica import Replica
from ..model.training_data import Data
from ..parts import parts
from ..process.context import gather, of_first
from ..process.run_handle import RankContext
from ..strategy import is_divided
from ..strategy.interface import Sharding
from . import commit, outline, saved_state
from .commit import PendingCheckpoint, Retention, check_owner
from .loading import ReadAhead
from .saved_state import SavedState, TrainSetup, TrainState, saved_values, spec_sha256
from .share import share
from .staging import Staging, first_not_finite
from .writer import CommittedSave, Writer

POLL_S = 0.5  # between two beats while a save is waited for


@dataclass(frozen=True)
class CopiedState:
    """A save that is not committed yet, as this rank knows it.

    values: the copy of the state as `saved_values` returns it, with memory only for what this rank
        writes; empty where that is nothing.
    copied: happens when the copy from the GPU is complete. manifest: still without the files.
    """

    values: dict[str, Any]
    sharding: Sharding
    copied: torch.cuda.Event | None
    manifest: Manifest
    retention: Retention
    parameters: Sequence[str]
    started: float
    stall_s: float

    @property
    def step(self) -> int:
        return self.manifest.global_step

    def write_part(self, sink: HashedSink) -> None:
        """Write the content of this rank's file."""
        outline.write_part(self.values, self.sharding, sink)


def create(context: RankContext, data: Data) -> Checkpoints:
    """Return the checkpoints of a run: those of a plugin where its strategy divides tensors."""
    kinds = parts("checkpoints") if is_divided(context) else {}
    checkpoints: Checkpoints = kinds.get(context.train.strategy, Checkpoints)(context, data)
    return checkpoints


class Checkpoints:
    """The checkpoints of a run, all of whose state rank 0 has. All ranks call every method.

    newest_step: the step of the newest checkpoint that was loaded, or whose save was started.
    """

    def __init__(self, context: RankContext, data: Data) -> None:
        self._context = context
        self._root = context.run.dir.checkpoints
        size, samples = data.length.global_batch_size, data.train_batches.samples_per_epoch
        self._setup = TrainSetup(size, samples, data.digest, asdict(context.train))
        self._spec_sha256 = spec_sha256(context.run)
        self._steps_per_epoch = data.length.steps_per_epoch
        self._staging = Staging()
        self._commits: Writer[CommittedSave] = Writer()
        self.newest_step: int | None = None
        if context.distributed.is_first:
            with storage(f"opening {self._root}"):
                self._root.mkdir(exist_ok=True)
                # The temporary files may be those of a newer attempt's save in flight.
                check_owner(context.run)
                commit.remove_leftovers(self._root)

    def load(self, replica: Replica, newest: ReadAhead) -> TrainState:
        """Load the newest undamaged checkpoint; return a fresh state if the run has none yet."""
        state = self._load(replica, newest)
        if state is None:
            return TrainState(replica.empty_row(), window_names=replica.metric_names)
        if state.window_names == replica.metric_names:
            state.window = state.window.to(self._context.device)
        else:  # the user has changed the objective's metrics on request
            state.window, state.window_names = replica.empty_row(), replica.metric_names
            state.epoch_sums = []
        self.newest_step = state.global_step
        return state

    def _load(self, replica: Replica, newest: ReadAhead) -> TrainState | None:
        """Load the state that rank 0 has read, on all ranks; return None before the first one."""
        found = newest.wait()
        values = share(None if found is None else found.values, self._context.device)
        if values is None:
            return None
        saved = SavedState.from_dict(values)
        self._check(saved, replica)
        replica.module.load_state_dict(saved.model)
        optim.load(replica.optimizer, saved.optimizer)
        return saved_state.restored_state(saved, replica, self._context.distributed)

    def _check(self, saved: SavedState, replica: Replica) -> None:
        """Raise UserError for a state of another training. All ranks call it."""
        saved_state.check_setup(saved.setup, self._setup, self._context)
        saved_state.check_fits(saved, replica)

    def allocate(self, replica: Replica, state: TrainState) -> None:
        """Begin to allocate the memory that saves need; after a step, when the optimizer has it."""
        self._staging.allocate(self._own_values(replica, state, state.window))

    def _own_values(
        self, replica: Replica, state: TrainState, windows: torch.Tensor
    ) -> dict[str, Any]:
        """Return what this rank writes of the present state; it shares its tensors."""
        is_first = self._context.distributed.is_first
        return saved_values(replica, self._setup, state, windows) if is_first else {}

    def is_any_saving(self) -> bool:
        """Return, on every rank, whether rank 0 has a save in flight."""
        return of_first(self.is_saving(), self._context.device)

    def save(self, replica: Replica, state: TrainState) -> None:
        """Copy the state, after the save before it; rank 0's thread commits a checkpoint of it.

        `commit_when_written` must follow.
        """
        new = self._copied(replica, state)
        if self._context.distributed.is_first:
            self._commits.start(self._commit, new)

    def _copied(self, replica: Replica, state: TrainState) -> CopiedState:
        """Return a copy of what this rank writes; wait for the commit in flight before."""
        # All ranks: each has its own sums since the last log line, and rank 0 writes them.
        windows = torch.stack(gather(state.window))
        self.newest_step = state.global_step
        started = time.monotonic()
        self._commits.wait()
        values, copied = self._staging.take(self._own_values(replica, state, windows))
        run = self._context.run
        manifest = Manifest(
            global_step=state.global_step,
            run_id=run.dir.run_id,
            attempt=run.attempt,
            spec_sha256=self._spec_sha256,
            world_size=self._context.distributed.world_size,
            global_batch_size=self._setup.global_batch_size,
            metrics_bytes=state.metrics_bytes,
            metrics=dict(state.metrics),
            best=Best(**state.best),
            files={},
        )
        return CopiedState(
            values=values,
            sharding=replica.strategy.sharding,
            copied=copied,
            manifest=manifest,
            retention=self._retention(state),
            parameters=[name for name, _ in replica.module.named_parameters()],
            started=started,
            stall_s=time.monotonic() - started,
        )

    @property
    def written_step(self) -> int:
        """The step of the newest part that this rank has written; -1 where rank 0 alone writes."""
        return -1

    def commit_when_written(self, written_step: int) -> None:
        """Let rank 0 commit the save in flight, if that is the lowest step of all ranks."""

    def is_saving(self) -> bool:
        """Return whether a save is in flight; exact on rank 0."""
        return self._commits.is_busy_after(0)

    def finish(self, beat: Callable[[], None]) -> None:
        """Wait, all ranks together, until the save in flight is committed.

        Calls `beat` every POLL_S seconds: the watchdog must not take a long save for a hang, and
        no collective may last as long as a save.
        """
        while True:
            beat()
            # Other ranks commit nothing.
            if not self._maximum(int(self._commits.is_busy_after(POLL_S))):
                return

    def _maximum(self, value: int) -> int:
        """Return the largest `value` of all ranks."""
        maximum = torch.tensor([value], dtype=torch.int64, device=self._context.device)
        dist.all_reduce(maximum, dist.ReduceOp.MAX)
        return int(maximum.item())

    def point_at_best(self, state: TrainState) -> None:
        """Write the name of the best checkpoint to the file `best`, if it is committed.

        An error is logged and does not end the training: no decision depends on that file alone.
        """
        if self._context.distributed.is_first and state.best:
            self._commits.wait()
            try:
                point_at_best(self._root, state.best["step"])
            except OSError as error:
                self._context.distributed.log(f"cannot write {self._root / BEST}: {error}")

    def completed(self) -> list[CommittedSave]:
        """Return the saves committed since the last call. Never waits.

        Raises the error of the save in flight, if it failed.
        """
        return self._commits.completed()

    def _check_copy(self, pending: CopiedState) -> None:
        """Wait for the copy from the GPU; raise NotFinite where a parameter is not finite."""
        if pending.copied is not None:
            pending.copied.synchronize()
        # The parameters only: a buffer may hold infinities, as an attention mask does.
        model = pending.values["model"]
        tensors = {name: model[name] for name in pending.parameters}
        if self._context.train.stop_on_nan and (name := first_not_finite(tensors)):
            what = f"{name} is not finite at step {pending.step}, which is not saved"
            hint = "use a lower train.lr, or train.grad_clip_norm; or train.stop_on_nan: false"
            raise NotFinite(what, hint)

    def _commit(self, pending: CopiedState, parts: tuple[NamedFile, ...] = ()) -> CommittedSave:
        """Commit a checkpoint, in the writer's thread. parts: where the ranks have written them.

        Raises: NotFinite, Superseded, StorageError, TransientStorageError.
        """
        files: dict[str, commit.Write | bytes] = {}
        if not parts:
            self._check_copy(pending)
            files[part_name(0)] = pending.write_part
        files[outline.STATE] = outline.to_json(pending.values, pending.sharding)
        check_before_rename = functools.partial(check_owner, self._context.run)
        new = PendingCheckpoint(pending.manifest, files, check_before_rename, parts)
        commit.commit_and_prune(self._root, new, pending.retention)
        return CommittedSave(pending.step, time.monotonic() - pending.started, pending.stall_s)

    def _retention(self, state: TrainState) -> Retention:
        checkpoint = self._context.run.spec.checkpoint
        epochs = (checkpoint.keep_every_epochs or 0) * self._steps_per_epoch
        every = tuple(filter(None, (checkpoint.keep_every_steps, epochs)))
        return Retention(checkpoint.keep_last, every, state.best.get("step"))

    def is_kept(self, state: TrainState) -> bool:
        """Return whether a checkpoint of this state is kept at any age."""
        return self._retention(state).keeps(state.global_step)
