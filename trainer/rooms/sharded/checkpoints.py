"""The checkpoints of a run whose model and optimizer are divided: each rank saves its rows."""

import dataclasses
import hashlib
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ....jobs.checkpoint import manifest
from ...checkpoint import checkpoints, commit, outline, recovery, saved_state
from ...checkpoint.checkpoints import Checkpoints, CopiedState
from ...checkpoint.loading import Found, ReadAhead
from ...checkpoint.outline import StoredTensor
from ...checkpoint.saved_state import SavedState, TrainState
from ...checkpoint.writer import Writer
from ...contract import Contents, DamageError, FileDigest, NamedFile, part_name, reader
from ...errors import TransientStorageError, storage_error
from ...model import optim
from ...model.replica import Replica
from ...model.training_data import Data
from ...process.context import broadcast_bytes, gather
from ...process.run_handle import RankContext
from ...strategy.sharding import Rows, Sharding

TEXT_BYTES = 512  # of each text that the ranks exchange
# Rows that are not read into their place, such as those of a GPU, go through such a buffer.
BUFFER_BYTES = 64 * 2**20


class DividedCheckpoints(Checkpoints):
    """Each rank writes its file; rank 0 commits when it has all. All ranks call every method.

    _pending: the save in flight until all ranks have written their part.
    """

    def __init__(self, context: RankContext, data: Data) -> None:
        super().__init__(context, data)
        # The file that this rank has written, and the digest of the tensors that it saves.
        self._parts: Writer[tuple[FileDigest, str]] = Writer()
        self._pending: CopiedState | None = None
        self._written_step = -1

    def _own_values(
        self, replica: Replica, state: TrainState, windows: torch.Tensor
    ) -> dict[str, Any]:
        """Return a state with memory only for the tensors that this rank writes."""
        sharding = replica.strategy.sharding
        if not sharding.is_writer:
            return {}

        def own(value: Any) -> Any:
            is_own = sharding.rank == 0 or not isinstance(value, torch.Tensor)
            return value if is_own else torch.empty_like(value, device="meta")

        present = saved_state.saved_values(replica, self._setup, state, windows)
        part: dict[str, Any] = outline.map_values(present, own)
        return part

    def save(self, replica: Replica, state: TrainState) -> None:
        """Copy this rank's part of the state; its thread writes it. No save may be in flight."""
        self._pending = self._copied(replica, state)
        if replica.strategy.sharding.is_writer:
            self._parts.start(self._write_part, self._pending)

    def _write_part(self, pending: CopiedState) -> tuple[FileDigest, str]:
        """Write this rank's part, in a thread. Raises as `_write_and_commit`."""
        self._check_copy(pending)
        run, step = self._context.run, pending.step
        # The next attempt has removed temporary files at its start; nothing would remove this one.
        commit.check_owner(run)
        name = part_name(self._context.distributed.rank)
        file = commit.write_part(self._root, step, run.attempt, name, pending.write_part)
        # Of name, type and shape of all tensors, which all ranks must have.
        layout = repr(outline.lay_out(pending.values, pending.sharding))
        return file.digest, hashlib.sha256(layout.encode()).hexdigest()

    @property
    def written_step(self) -> int:
        """The step of the newest save of which this rank has written its part; -1 before it."""
        if self._pending is not None and not self._parts.is_busy_after(0):
            self._written_step = self._pending.step
        return self._written_step

    def commit_when_written(self, written_step: int) -> None:
        """Let rank 0 commit the save in flight, if all ranks have written their part."""
        if self._pending is None or written_step < self._pending.step:
            return
        pending, self._pending = self._pending, None
        parts = self._gathered_parts(pending.sharding)
        if self._context.distributed.is_first:
            self._commits.start(self._commit, pending, parts)

    def _gathered_parts(self, sharding: Sharding) -> tuple[NamedFile, ...]:
        """Return what all ranks have written, on every rank.

        Raises: RuntimeError where the ranks disagree about the tensors.
        """
        text = ""
        for digest, layout_sha256 in self._parts.completed():
            text = f"{digest.size} {digest.sha256} {layout_sha256}"
        texts = _gather_texts(text, self._context.device)
        parts = [text.split() for text in texts[: sharding.num_shards]]
        if len({layout for _, _, layout in parts}) > 1:
            raise RuntimeError("the ranks disagree about the tensors in a checkpoint")
        return tuple(
            NamedFile(part_name(rank), FileDigest(int(size), sha256))
            for rank, (size, sha256, _) in enumerate(parts)
        )

    def is_saving(self) -> bool:
        """Return whether a save is in flight; exact on rank 0."""
        return self._pending is not None or super().is_saving()

    def check(self) -> None:
        """Raise the error of the save in flight, if it failed. Never waits."""
        self._parts.poll()
        super().check()

    def finish(self, beat: Callable[[], None]) -> None:
        """Wait, all ranks together, until the save in flight is committed."""
        while self._pending is not None:
            beat()
            self._parts.is_busy_after(checkpoints.POLL_S)
            self.commit_when_written(-self._maximum(-self.written_step))
        super().finish(beat)

    def _load(self, replica: Replica, newest: ReadAhead) -> TrainState | None:
        """Let each rank read what it needs of the newest checkpoint that all ranks can read.

        If a rank finds damage, all ranks load the next older one.
        Raises: UserError, StorageError, TransientStorageError.
        """
        context = self._context
        while (shared := _share(newest.wait(), context)) is not None:
            saved, contents = shared
            self._check(saved, replica)
            with contents:
                read, problem = _read_part(saved, replica, contents)
            problems = _gather_texts(problem, context.device)
            if not any(problems):
                optim.load(replica.optimizer, read.optimizer, is_owned=True)
                return saved_state.restored_state(read, replica, context.distributed)
            if context.distributed.is_first:
                _quarantine(contents, problems, context)
            newest = ReadAhead(context)
        return None


def _share(newest: Found | None, context: RankContext) -> tuple[SavedState, Contents] | None:
    """Return rank 0's state without tensors, and the files that have them, on every rank."""
    texts = (b"", b"", b"") if newest is None else newest.texts
    name, of_manifest, of_state = (broadcast_bytes(text, context.device) for text in texts)
    if not name:
        return None
    directory = context.run.dir.checkpoints / name.decode()
    contents = Contents(directory, manifest.parse(of_manifest, directory))
    values = outline.from_json(of_state) if newest is None else newest.values
    return SavedState.from_dict(values), contents


def _read_part(saved: SavedState, replica: Replica, contents: Contents) -> tuple[SavedState, str]:
    """Fill this rank's part of the model; return the rest of the state, and what is damaged."""
    try:
        _fill_model(replica, saved.model, contents)
        state = _optimizer_state(replica, saved.optimizer["state"], contents)
        rest = outline.whole({"state": vars(saved.state), "scaler": saved.scaler}, contents)
    except DamageError as error:
        return saved, str(error)
    except OSError as error:
        raise storage_error(error, f"loading checkpoint {contents.directory}") from error
    # Its options are those of the present spec.
    options = outline.map_values(saved.optimizer, _without_tensor)
    optimizer = {**options, "state": state}
    read = dataclasses.replace(
        saved, optimizer=optimizer, state=TrainState(**rest["state"]), scaler=rest["scaler"]
    )
    return read, ""


def _fill_model(replica: Replica, saved: Mapping[str, Any], contents: Contents) -> None:
    """Fill parameters and buffers. saved: the `state_dict()`, as `outline.read` returns it."""
    own, others = _own_memory(replica), {}
    for name, value in saved.items():
        if name in own and isinstance(value, StoredTensor):
            _fill(own[name], value, replica, contents)
        else:
            others[name] = outline.whole(value, contents)
    if others:
        replica.module.load_state_dict(others, strict=False)


def _own_memory(replica: Replica) -> dict[str, torch.Tensor | Rows]:
    """Return the entries of `state_dict()` that are the memory of parameters and buffers.

    Not what get_extra_state() or a hook returns: the module has to load that by itself.
    """
    module, strategy = replica.module, replica.strategy
    named: dict[str, torch.Tensor] = dict(module.named_buffers(remove_duplicate=False))
    named.update(module.named_parameters(remove_duplicate=False))
    held = {name: strategy.part(value.detach()) for name, value in named.items()}
    return {
        name: value
        for name, value in saved_state.model_parts(module, strategy).items()
        if name in held and _address(value) == _address(held[name])
    }


def _address(value: Any) -> int | None:
    tensor = value.local if isinstance(value, Rows) else value
    return tensor.data_ptr() if isinstance(tensor, torch.Tensor) else None


def _optimizer_state(
    replica: Replica, saved: Mapping[int, Mapping[str, Any]], contents: Contents
) -> dict[int, dict[str, Any]]:
    """Return what this rank's optimizer keeps. saved: for each parameter the whole state."""
    owners = saved_state.parameters_of(replica.optimizer)

    def own(value: Any, owner: torch.nn.Parameter) -> Any:
        rows = replica.strategy.part(owner.detach(), owner)
        is_tensor = isinstance(value, StoredTensor)
        if not is_tensor or not isinstance(rows, Rows) or value.shape != rows.shape:
            return outline.whole(value, contents)
        part = Rows(torch.empty_like(rows.local, dtype=value.dtype), rows.shape)
        _fill(part, value, replica, contents)
        return part.local

    return {
        index: {key: own(value, owners[index]) for key, value in values.items()}
        for index, values in saved.items()
    }


def _fill(
    target: torch.Tensor | Rows, value: StoredTensor, replica: Replica, contents: Contents
) -> None:
    first, tensor = 0, target
    if isinstance(target, Rows):
        row = math.prod(target.shape[1:])
        first = replica.strategy.sharding.rows(target.shape[0])[0] * row
        tensor = target.local
    assert isinstance(tensor, torch.Tensor)
    read_rows(value, contents, first, tensor.detach())


def read_rows(stored: StoredTensor, contents: Contents, first: int, target: torch.Tensor) -> None:
    """Fill `target` with the elements from number `first` on. Raises: DamageError, OSError.

    target: on any device, in any memory format; the elements count as in a contiguous one.
    """
    dtype = stored.dtype
    if target.device.type == "cpu" and target.is_contiguous() and target.dtype == dtype:
        stored.read_into(contents, first, target)
        return
    step = max(1, BUFFER_BYTES // dtype.itemsize) if target.is_contiguous() else target.numel()
    buffer = torch.empty(min(step, target.numel()), dtype=dtype)
    parts = torch.split(target.view(-1), step) if target.is_contiguous() else (target,)
    for part in parts:
        own = buffer[: part.numel()]
        stored.read_into(contents, first, own)
        part.copy_(own.view(part.shape))
        first += part.numel()


def _without_tensor(value: Any) -> Any:
    return None if isinstance(value, StoredTensor) else value


def _quarantine(contents: Contents, problems: list[str], context: RankContext) -> None:
    """Put a damaged checkpoint aside, if rank 0 finds the damage, too.

    Raises: TransientStorageError where only the node of another rank sees other bytes.
    """
    directory, log = contents.directory, context.distributed.log
    rank = next(index for index, problem in enumerate(problems) if problem)
    digests = {file.name: file.digest for file in contents.manifest.files}
    name = problems[rank].partition(" ")[0].rstrip(":")
    try:
        if name in digests:  # first: a large checkpoint takes longer than the other ranks wait
            reader.check_file(directory / name, digests[name])
        reader.check(directory)
    except DamageError as error:
        recovery.quarantine_and_report(directory, str(error), log)
    except OSError as error:
        raise storage_error(error, f"checking checkpoint {directory}") from error
    else:
        raise TransientStorageError(
            f"rank {rank} cannot read checkpoint {directory}: {problems[rank]}; rank 0 reads all "
            "its files as they were written"
        )


def _gather_texts(text: str, device: torch.device) -> list[str]:
    """Return the text of every rank, each cut to TEXT_BYTES, in rank order."""
    data = text.encode()[:TEXT_BYTES].ljust(TEXT_BYTES, b"\0")
    rows = gather(torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device))
    return [bytes(row.tolist()).rstrip(b"\0").decode(errors="ignore") for row in rows]
