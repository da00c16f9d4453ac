"""The checkpoints of a run: threads save the state beside the training; every rank loads it."""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ..contract import (
    BEST,
    Best,
    BlockSink,
    FileDigest,
    Manifest,
    Metric,
    NamedFile,
    checkpoint_name,
    part_name,
    point_at_best,
)
from ..errors import NotFinite, storage_error
from ..model.replica import Replica
from ..model.training_data import Data
from ..process.context import gather, gather_texts, of_first
from ..process.run_handle import RankContext
from ..strategy.sharding import Rows, Sharding
from . import commit, outline
from .commit import PendingCheckpoint, Retention, check_owner
from .loading import ReadAhead, load_newest
from .saved_state import TrainState, saved_values
from .setup import TrainSetup, spec_sha256
from .staging import Staging, first_not_finite
from .writer import CommittedSave, Writer

POLL_S = 0.5  # between two beats while a save is waited for


@dataclass(frozen=True)
class _Save:
    """A save that is not committed yet, as this rank knows it.

    values: the copy of the state as `saved_values` returns it, with memory only for what this rank
        writes; empty where that is nothing.
    sharding: of the divided tensors.
    copied: happens when the copy from the GPU is complete.
    manifest: still without the files. retention: which checkpoints are kept after this one.
    parameters: the names of the model's parameters.
    started, stall_s: on the monotonic clock, and in seconds.
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
        """The optimizer step after which the state was saved."""
        return self.manifest.global_step

    def write_part(self, sink: BlockSink) -> None:
        """Write the content of this rank's file."""
        outline.write_part(self.values, self.sharding, sink)

    def layout_sha256(self) -> str:
        """Return a digest of name, type and shape of all tensors, which all ranks must have."""
        layout = repr(outline.lay_out(self.values, self.sharding))
        return hashlib.sha256(layout.encode()).hexdigest()


class _Part(NamedTuple):
    """The file that a rank has written, and the digest of the tensors that it saves."""

    digest: FileDigest
    layout_sha256: str


def _own_part(values: dict[str, Any], sharding: Sharding) -> dict[str, Any]:
    """Return a state with memory only for the tensors that this rank writes."""

    def own(value: Any) -> Any:
        is_own = sharding.rank == 0 or not isinstance(value, torch.Tensor)
        return value if is_own else torch.empty_like(value, device="meta")

    part: dict[str, Any] = outline.map_values(values, own)
    return part


class Checkpoints:
    """The checkpoints of a run. All ranks call every method.

    Rank 0 commits; the others write a file only where tensors are divided.

    newest_step: the step of the newest checkpoint that was loaded, or whose save was started.
    """

    def __init__(self, context: RankContext, data: Data) -> None:
        self._context = context
        self._root = context.run.dir.checkpoints
        self._setup = TrainSetup.of(data, context.train)
        self._spec_sha256 = spec_sha256(context.run)
        self._steps_per_epoch = data.length.steps_per_epoch
        self._staging = Staging()
        self._commits: Writer[CommittedSave] = Writer()
        # Where tensors are divided: the part of this rank, and the save in flight until all ranks
        # have written theirs.
        self._parts: Writer[_Part] = Writer()
        self._pending: _Save | None = None
        self._written_step = -1
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
        """Load the newest undamaged checkpoint; return a fresh state if the run has none yet."""
        state = load_newest(self._context, self._setup, replica, newest)
        if state is None:
            return TrainState(replica.empty_row(), window_names=replica.metric_names)
        if state.window_names == replica.metric_names:
            state.window = state.window.to(self._context.device)
        else:  # the user has changed the objective's metrics on request
            state.window, state.window_names = replica.empty_row(), replica.metric_names
            state.epoch_sums = []
        self.newest_step = state.global_step
        return state

    def allocate(self, replica: Replica, state: TrainState) -> None:
        """Begin to allocate the memory that saves need; after a step, when the optimizer has it."""
        if replica.strategy.sharding.is_writer:
            values = saved_values(replica, self._setup, state, state.window)
            self._staging.allocate(_own_part(values, replica.strategy.sharding))

    def is_any_saving(self) -> bool:
        """Return, on every rank, whether rank 0 has a save in flight."""
        return of_first(self.is_saving(), self._context.device)

    def save(self, replica: Replica, state: TrainState) -> None:
        """Copy the state; threads write it, and rank 0's thread commits a checkpoint of it.

        Where tensors are divided, `commit_when_written` must follow, and no save may be in flight.
        Else it waits for the save before it.
        """
        windows = torch.stack(gather(state.window))
        self.newest_step = state.global_step
        sharding = replica.strategy.sharding
        if not sharding.is_writer and sharding.num_shards == 1:
            return
        started = time.monotonic()
        self._commits.wait()
        values: dict[str, Any] = {}
        copied = None
        if sharding.is_writer:
            present = saved_values(replica, self._setup, state, windows)
            values, copied = self._staging.take(_own_part(present, sharding))
        new = _Save(
            values=values,
            sharding=sharding,
            copied=copied,
            manifest=self._manifest(state),
            retention=self._retention(state),
            parameters=[name for name, _ in replica.module.named_parameters()],
            started=started,
            stall_s=time.monotonic() - started,
        )
        if sharding.num_shards == 1:
            self._commits.start(self._write_and_commit, new)
            return
        self._pending = new
        if sharding.is_writer:
            self._parts.start(self._write_part, new)

    @property
    def written_step(self) -> int:
        """The step of the newest save of which this rank has written its part; -1 before it."""
        if self._pending is not None and not self._parts.is_busy_after(0):
            self._written_step = self._pending.step
        return self._written_step

    def commit_when_written(self, written_step: int) -> None:
        """Let rank 0 commit the save in flight, if all ranks have written their part.

        written_step: the lowest `written_step` of all ranks.
        """
        if self._pending is None or written_step < self._pending.step:
            return
        pending, self._pending = self._pending, None
        parts = self._gathered_parts(pending)
        if self._context.distributed.is_first:
            self._commits.start(self._commit, pending, parts)

    def is_saving(self) -> bool:
        """Return whether a save is in flight; exact on rank 0."""
        return self._pending is not None or self._commits.is_busy_after(0)

    def check(self) -> None:
        """Raise the error of the save in flight, if it failed. Never waits."""
        self._parts.poll()
        self._commits.poll()

    def finish(self, beat: Callable[[], None]) -> None:
        """Wait, all ranks together, until the save in flight is committed.

        Calls `beat` every POLL_S seconds: the watchdog must not take a long save for a hang, and
        no collective may last as long as a save.
        """
        while self._pending is not None:
            beat()
            self._parts.is_busy_after(POLL_S)
            self.commit_when_written(-self._maximum(-self.written_step))
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
        """Return the saves that `check`, `save` or `finish` found committed since the last call."""
        return self._commits.completed()

    def _write_and_commit(self, pending: _Save) -> CommittedSave:
        """Write and commit a copy of the whole state, in the writer's thread.

        Raises: NotFinite, Superseded, StorageError, TransientStorageError.
        """
        self._check_copy(pending)
        return self._commit(pending, (), {part_name(0): pending.write_part})

    def _write_part(self, pending: _Save) -> _Part:
        """Write this rank's part of a copy of the state, in a thread. Raises as above."""
        self._check_copy(pending)
        run, step = self._context.run, pending.step
        # The next attempt has removed temporary files at its start; nothing would remove this one.
        check_owner(run)
        name = part_name(self._context.distributed.rank)
        file = commit.write_part(self._root, step, run.attempt, name, pending.write_part)
        return _Part(file.digest, pending.layout_sha256())

    def _check_copy(self, pending: _Save) -> None:
        """Wait for the copy from the GPU; raise NotFinite where a parameter is not finite."""
        if pending.copied is not None:
            pending.copied.synchronize()
        # The parameters only: a buffer may hold infinities, as an attention mask does.
        model = pending.values["model"]
        tensors = {name: model[name] for name in pending.parameters}
        tensors = {
            name: value.local if isinstance(value, Rows) else value
            for name, value in tensors.items()
            if isinstance(value, Rows) or not value.is_meta
        }
        if self._context.train.stop_on_nan and (name := first_not_finite(tensors)):
            step = pending.step
            raise NotFinite(
                f"{name} is not finite at step {step}: no checkpoint of this step is committed\n"
                "  hint: use a lower train.lr, or train.grad_clip_norm; train.stop_on_nan: false "
                "saves it regardless"
            )

    def _gathered_parts(self, pending: _Save) -> tuple[NamedFile, ...]:
        """Return what all ranks have written, on every rank.

        Raises: RuntimeError where the ranks disagree about the tensors.
        """
        text = ""
        for own in self._parts.completed():
            text = f"{own.digest.size} {own.digest.sha256} {own.layout_sha256}"
        texts = gather_texts(text, self._context.device)
        parts = [text.split() for text in texts[: pending.sharding.num_shards]]
        if len({layout for _, _, layout in parts}) > 1:
            raise RuntimeError("the ranks disagree about the tensors in a checkpoint")
        return tuple(
            NamedFile(part_name(rank), FileDigest(int(size), sha256))
            for rank, (size, sha256, _) in enumerate(parts)
        )

    def _commit(
        self,
        pending: _Save,
        parts: tuple[NamedFile, ...],
        more: Mapping[str, commit.Write] = MappingProxyType({}),
    ) -> CommittedSave:
        """Commit a checkpoint whose parts are written or in `more`, in the writer's thread."""
        step = pending.step
        text = outline.to_json(pending.values, pending.sharding)
        files: dict[str, commit.Write | bytes] = {**more, outline.STATE: text}
        check_before_rename = functools.partial(check_owner, self._context.run)
        new = PendingCheckpoint(pending.manifest, files, check_before_rename, parts)
        commit.commit_and_prune(self._root, new, pending.retention)
        seconds = time.monotonic() - pending.started
        return CommittedSave(checkpoint_name(step), step, seconds, pending.stall_s)

    def _retention(self, state: TrainState) -> Retention:
        checkpoint = self._context.run.spec.checkpoint
        epochs = (checkpoint.keep_every_epochs or 0) * self._steps_per_epoch
        every = tuple(filter(None, (checkpoint.keep_every_steps, epochs)))
        return Retention(checkpoint.keep_last, every, state.best.get("step"))

    def is_kept(self, state: TrainState) -> bool:
        """Return whether a checkpoint of this state is kept at any age."""
        return self._retention(state).keeps(state.global_step)

    def _manifest(self, state: TrainState) -> Manifest:
        """Return the manifest of a checkpoint, without its files."""
        run = self._context.run
        return Manifest(
            global_step=state.global_step,
            run_id=run.dir.run_id,
            attempt=run.attempt,
            spec_sha256=self._spec_sha256,
            world_size=self._context.distributed.world_size,
            global_batch_size=self._setup.global_batch_size,
            metrics_bytes=state.metrics_bytes,
            metrics=tuple(Metric(name, value) for name, value in state.metrics.items()),
            best=Best(**state.best),
            files=(),
        )
