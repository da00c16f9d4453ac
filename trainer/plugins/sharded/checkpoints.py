"""The checkpoints of a run whose model and optimizer are divided: each rank saves its rows."""

import dataclasses
import functools
import hashlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch

from ....jobs.contract.checkpoint import manifest
from ...checkpoint import checkpoints, commit, outline, recovery, saved_state
from ...checkpoint.checkpoints import Checkpoints, CopiedState
from ...checkpoint.loading import Found, ReadAhead
from ...checkpoint.outline import Part, StoredTensor, read_parts
from ...checkpoint.saved_state import SavedState, TrainState
from ...checkpoint.writer import Writer
from ...contract import (
    Contents,
    DamageError,
    FileDigest,
    NamedFile,
    checkpoint_name,
    part_name,
    reader,
)
from ...errors import TransientStorageError, storage
from ...model import optim
from ...model.replica import Replica
from ...model.training_data import Data
from ...process.context import broadcast_bytes, gather
from ...process.run_handle import RankContext
from ...strategy.interface import Rows, Sharding

TEXT_BYTES = 512  # of each text that the ranks exchange
# Rows that are not read into their place, such as those of a GPU, go through such a buffer.
BUFFER_BYTES = 64 * 2**20


class DividedCheckpoints(Checkpoints):
    """Each rank writes its file; rank 0 commits when it has all. All ranks call every method."""

    def __init__(self, context: RankContext, data: Data) -> None:
        super().__init__(context, data)
        # The file that this rank has written, and the digest of the tensors that it saves.
        self._parts: Writer[tuple[FileDigest, str]] = Writer()
        self._pending: CopiedState | None = None  # until all ranks have written their part
        self._written_step = -1

    def _own_values(
        self, replica: Replica, state: TrainState, windows: torch.Tensor
    ) -> dict[str, Any]:
        """Return a state with memory only for the tensors that this rank writes."""
        sharding = replica.strategy.sharding
        if not _is_writer(sharding):
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
        if _is_writer(replica.strategy.sharding):
            self._parts.start(self._write_part, self._pending)

    def _write_part(self, pending: CopiedState) -> tuple[FileDigest, str]:
        """Write this rank's part, in a thread. Raises as `_commit`."""
        self._check_copy(pending)
        run, step = self._context.run, pending.step
        # The next attempt has removed temporary files at its start; nothing would remove this one.
        commit.check_owner(run)
        name = part_name(self._context.distributed.rank)
        directory = commit.temporary_directory(self._root, step, run.attempt)
        with storage(f"saving {name} of checkpoint {self._root / checkpoint_name(step)}"):
            directory.mkdir(exist_ok=True)
            # Another rank's disk may be the same: a file that cannot be read back goes.
            with commit.discarded_on_error(directory / name):
                _, digest = commit.write_file(directory / name, pending.write_part)
        # Of name, type and shape of all tensors, which all ranks must have.
        layout = repr(outline.lay_out(pending.values, pending.sharding))
        return digest, hashlib.sha256(layout.encode()).hexdigest()

    @property
    def written_step(self) -> int:
        if self._pending is not None and not self._parts.is_busy_after(0):
            self._written_step = self._pending.step
        return self._written_step

    def commit_when_written(self, written_step: int) -> None:
        if self._pending is None or written_step < self._pending.step:
            return
        pending, self._pending = self._pending, None
        parts = self._gathered_parts(pending.sharding)
        if self._context.distributed.is_first:
            self._commits.start(self._commit, pending, parts)

    def _gathered_parts(self, sharding: Sharding) -> tuple[NamedFile, ...]:
        """Return what all ranks have written, on every rank."""
        text = ""
        for digest, layout_sha256 in self._parts.completed():
            text = f"{digest.size} {digest.sha256} {layout_sha256}"
        texts = _gather_texts(text, self._context.device)
        parts = [text.split() for text in texts[: sharding.num_shards]]
        if len({layout for _, _, layout in parts}) > 1:
            raise RuntimeError("the ranks disagree about the tensors in a checkpoint")
        return tuple(
            (part_name(rank), FileDigest(int(size), sha256))
            for rank, (size, sha256, _) in enumerate(parts)
        )

    def is_saving(self) -> bool:
        return self._pending is not None or super().is_saving()

    def finish(self, beat: Callable[[], None]) -> None:
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
            parts: list[Part] = []
            read = _with_memory(saved, replica, parts)
            problems = _read(parts, contents, context)
            if not any(problems):
                if read.model:
                    replica.module.load_state_dict(read.model, strict=False)
                optim.load(replica.optimizer, read.optimizer)
                return saved_state.restored_state(read, replica, context.distributed)
            if context.distributed.is_first:
                _quarantine(contents, problems, context)
            newest = ReadAhead(context)
        return None


def _is_writer(sharding: Sharding) -> bool:
    """Return whether this rank writes its part; ranks with a copy of it do not."""
    return sharding.rank < sharding.num_shards


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


def _read(parts: list[Part], contents: Contents, context: RankContext) -> list[str]:
    """Read this rank's parts; return what each rank found damaged.

    With as many ranks as at the save each rank reads and checks its own file in one pass. Otherwise
    it checks its share of the files. From the others it reads afterwards what it needs.
    """
    place, names = context.distributed, contents.part_names
    own = names[place.rank :: place.world_size]
    problem = _damage(parts, contents, own, is_checked=False)
    # All ranks: none may read of a file before the one that checks it has done so.
    problems = _gather_texts(problem, context.device)
    if not any(problems):
        others = {part.file for part in parts}.difference(own)
        problem = _damage(parts, contents, others, is_checked=True)
        problems = _gather_texts(problem, context.device)  # all ranks: they load the same one
    return problems


def _damage(parts: list[Part], contents: Contents, files: Collection[str], is_checked: bool) -> str:
    """Read the parts in these files; return what is damaged, "" where nothing is."""
    directory = contents.directory
    try:
        with storage(f"loading checkpoint {directory}"):
            reader.twice(directory, lambda _: read_parts(parts, contents, files, is_checked))
    except DamageError as error:
        return str(error)
    return ""


def _with_memory(saved: SavedState, replica: Replica, parts: list[Part]) -> SavedState:
    """Return a state with memory for what this rank reads of it; append the parts.

    Parameters and buffers are read into their place; its `model` has what is left.
    """
    own, others = _own_memory(replica), {}
    for name, value in saved.model.items():
        if name in own and isinstance(value, StoredTensor):
            _add_own(own[name], value, replica, parts)
        else:
            others[name] = outline.with_memory(value, parts)
    # Its options are those of the present spec.
    options = outline.map_values(
        saved.optimizer, lambda value: None if isinstance(value, StoredTensor) else value
    )
    state = _optimizer_state(replica, saved.optimizer["state"], parts)
    return dataclasses.replace(
        saved,
        model=others,
        optimizer={**options, "state": state},
        state=TrainState(**outline.with_memory(vars(saved.state), parts)),
        scaler=outline.with_memory(saved.scaler, parts),
    )


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
    replica: Replica, saved: Mapping[int, Mapping[str, Any]], parts: list[Part]
) -> dict[int, dict[str, Any]]:
    """Return memory for what this rank's optimizer keeps. saved: the state of each parameter."""
    owners = saved_state.parameters_of(replica.optimizer)

    def own(value: Any, owner: torch.nn.Parameter) -> Any:
        rows = replica.strategy.part(owner.detach(), owner)
        is_tensor = isinstance(value, StoredTensor)
        if not is_tensor or not isinstance(rows, Rows) or value.shape != rows.shape:
            return outline.with_memory(value, parts)
        part = Rows(torch.empty_like(rows.local, dtype=value.dtype), rows.shape)
        _add_own(part, value, replica, parts)
        return part.local

    return {
        index: {key: own(value, owners[index]) for key, value in values.items()}
        for index, values in saved.items()
    }


def _add_own(
    target: torch.Tensor | Rows, value: StoredTensor, replica: Replica, parts: list[Part]
) -> None:
    first = 0
    if isinstance(target, Rows):
        first = replica.strategy.sharding.rows(target.shape[0])[0] * math.prod(target.shape[1:])
    parts += parts_of(value, first, outline.local(target).detach())


def parts_of(stored: StoredTensor, first: int, target: torch.Tensor) -> Iterator[Part]:
    """Yield the parts that fill `target` with the elements from number `first` on.

    target: whole rows on any device, in any memory format; the elements count as in a contiguous
    one.
    """
    done, row = 0, math.prod(target.shape[1:])
    for file, begin, size in stored.pieces(first, target.numel()):
        if target.is_contiguous():
            own = target.view(-1)[done : done + size]
        else:  # a file has whole rows
            own = target[done // row : (done + size) // row]
        yield Part(stored, file, begin, size, functools.partial(_memory_for, own, stored.dtype))
        done += size


def _memory_for(target: torch.Tensor, dtype: torch.dtype) -> Iterator[memoryview]:
    """Yield memory on the CPU for the elements of `target`; copy what was filled to its place."""
    if target.device.type == "cpu" and target.is_contiguous() and target.dtype == dtype:
        yield outline.memory_of(target)
        return
    step = max(1, BUFFER_BYTES // dtype.itemsize) if target.is_contiguous() else target.numel()
    buffer = torch.empty(min(step, target.numel()), dtype=dtype)
    for part in torch.split(target.view(-1), step) if target.is_contiguous() else (target,):
        own = buffer[: part.numel()]
        yield outline.memory_of(own)
        part.copy_(own.view(part.shape))


def _quarantine(contents: Contents, problems: list[str], context: RankContext) -> None:
    """Put a damaged checkpoint aside, if rank 0 finds the damage, too.

    Raises: TransientStorageError where only the node of another rank sees other bytes.
    """
    directory, log = contents.directory, context.distributed.log
    rank = next(index for index, problem in enumerate(problems) if problem)
    digests = contents.manifest.files
    name = problems[rank].partition(" ")[0].rstrip(":")
    try:
        with storage(f"checking checkpoint {directory}"):
            if name in digests:  # first: a large checkpoint takes longer than the other ranks wait
                reader.check_file(directory / name, digests[name])
            reader.check(directory)
    except DamageError as error:
        recovery.quarantine_and_report(directory, str(error), log)
    else:
        what = f"rank {rank} cannot read checkpoint {directory}: {problems[rank]}; rank 0 reads all"
        raise TransientStorageError(f"{what} its files as they were written")


def _gather_texts(text: str, device: torch.device) -> list[str]:
    """Return the text of every rank, each cut to TEXT_BYTES, in rank order."""
    data = text.encode()[:TEXT_BYTES].ljust(TEXT_BYTES, b"\0")
    rows = gather(torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device))
    return [bytes(row.tolist()).rstrip(b"\0").decode(errors="ignore") for row in rows]
