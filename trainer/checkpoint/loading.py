"""Loads the newest undamaged checkpoint on all ranks."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from ..contract import Contents, manifest, reader
from ..errors import TransientStorageError, storage_error
from ..model import optim
from ..model.replica import Replica
from ..process.context import broadcast_bytes, gather
from ..process.run_handle import RankContext
from ..strategy import is_divided
from . import outline, recovery, saved_state
from .read_ahead import Found, ReadAhead
from .saved_state import SavedState, TrainState
from .setup import TrainSetup, check_setup
from .share import share

PROBLEM_BYTES = 512  # of the text that a rank tells the others


def load_newest(
    context: RankContext, setup: TrainSetup, replica: Replica, newest: ReadAhead
) -> TrainState | None:
    """Load the newest checkpoint that all ranks can read; return None before the first one.

    Where tensors are divided, each rank reads what it needs. If a rank finds damage, all ranks load
    the next older one.
    Raises: UserError, StorageError, TransientStorageError.
    """
    while True:
        shared = _share(newest.wait(), context)
        if shared is None:
            return None
        saved, contents = shared
        check_setup(saved.setup, setup, context)
        saved_state.check_fits(saved, replica)
        saved_state.check_moments(saved, replica, context.train)
        if contents is None:
            saved_state.restore(saved, replica)
            return saved_state.restored_state(saved, replica, context.distributed)
        with contents:
            read, problem = _read(saved, replica, contents)
        problems = _of_all_ranks(problem, context)
        if not any(problems):
            optim.load(replica.optimizer, read.optimizer, is_owned=True)
            return saved_state.restored_state(read, replica, context.distributed)
        if context.distributed.is_first:
            _quarantine(contents, problems, context)
        newest = ReadAhead(context)


def _share(newest: Found | None, context: RankContext) -> tuple[SavedState, Contents | None] | None:
    """Return rank 0's state on every rank: with whole tensors, or with the files to read."""
    device = context.device
    values = None if newest is None else newest.values
    if not is_divided(context):
        values = share(values, device)
        return None if values is None else (SavedState.from_dict(values), None)
    texts = (b"", b"", b"") if newest is None else newest.texts
    name, of_manifest, of_state = (broadcast_bytes(text, device) for text in texts)
    if not name:
        return None
    directory = context.run.dir.checkpoints / name.decode()
    contents = Contents(directory, manifest.parse(of_manifest, directory))
    values = outline.from_json(of_state) if values is None else values
    return SavedState.from_dict(values), contents


def _read(saved: SavedState, replica: Replica, contents: Contents) -> tuple[SavedState, str]:
    """Fill this rank's part of the model; return the rest of the state, and what is damaged."""
    tensors = saved.model, saved.optimizer["state"]
    try:
        state = replica.strategy.read(replica.module, replica.optimizer, tensors, contents)
        rest = outline.whole({"state": vars(saved.state), "scaler": saved.scaler}, contents)
    except reader.DamageError as error:
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


def _without_tensor(value: Any) -> Any:
    return None if isinstance(value, outline.StoredTensor) else value


def _of_all_ranks(text: str, context: RankContext) -> list[str]:
    """Return the texts of all ranks, in rank order."""
    own = torch.zeros(PROBLEM_BYTES, dtype=torch.uint8)
    data = text.encode()[:PROBLEM_BYTES]
    own[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else own[:0]
    rows = gather(own.to(context.device))
    return [bytes(row.tolist()).rstrip(b"\0").decode(errors="ignore") for row in rows]


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
    except reader.DamageError as error:
        recovery.quarantine_and_report(directory, str(error), log)
    except OSError as error:
        raise storage_error(error, f"checking checkpoint {directory}") from error
    else:
        raise TransientStorageError(
            f"rank {rank} cannot read checkpoint {directory}: {problems[rank]}; rank 0 reads all "
            "its files as they were written"
        )
