"""Loads the newest undamaged checkpoint on all ranks; rank 0 reads while they build models."""

from __future__ import annotations

import dataclasses
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

from ..contract import (
    Contents,
    DamageError,
    ProvenanceOrigin,
    RunDir,
    block_stop_signals,
    manifest,
    reader,
    records,
)
from ..errors import TransientStorageError, storage_error
from ..model import optim
from ..model.replica import Replica
from ..process.context import broadcast_bytes, gather_texts
from ..process.run_handle import RankContext
from ..strategy import is_divided
from . import outline, recovery, saved_state
from .commit import check_owner
from .saved_state import SavedState, TrainState
from .setup import TrainSetup, check_setup
from .share import share


class Found(NamedTuple):
    """The newest checkpoint of a run that rank 0 found undamaged.

    values: its state with whole tensors on the CPU, or with a StoredTensor in the place of each.
    texts: in the second case its name, its manifest and its state.json.
    """

    values: dict[str, Any]
    texts: tuple[bytes, ...] = ()


class ReadAhead:
    """The newest undamaged checkpoint of a run. All ranks create it; rank 0 then reads it.

    is_expected: whether rank 0's `wait` returns one, or raises; the same on every rank.
    Raises: Superseded; StorageError or TransientStorageError for the folder of the checkpoints.
    """

    def __init__(self, context: RankContext) -> None:
        known = None
        self._reading: Future[Found] | None = None
        if context.distributed.is_first:
            run_dir = context.run.dir
            try:
                check_owner(context.run)  # the thread renames a damaged checkpoint
                known = recovery.known_of_run(run_dir)
            except OSError as error:
                doing = f"looking for a checkpoint in {run_dir.checkpoints}"
                raise storage_error(error, doing) from error
            if known.newest is not None:
                executor = ThreadPoolExecutor(1, "checkpoint-reader", block_stop_signals)
                self._reading = executor.submit(_read_newest, context, known)
                executor.shutdown(wait=False)
        newest = "" if known is None else known.newest or ""
        self.is_expected = bool(broadcast_bytes(newest.encode(), context.device))

    def wait(self) -> Found | None:
        """Wait until it is read, and return it; None before the first one and on other ranks.

        Raises: UserError if the run had checkpoints, and has no undamaged one now; StorageError or
        TransientStorageError.
        """
        return None if self._reading is None else self._reading.result()


def _read_newest(context: RankContext, known: recovery.KnownCheckpoints) -> Found:
    """Read the newest undamaged checkpoint; without its tensors where each rank reads its part."""
    run_dir, log = context.run.dir, context.distributed.log

    def found(contents: Contents) -> Found:
        text = contents.read(outline.STATE)
        if not is_divided(context):
            return Found(outline.whole(outline.from_json(text), contents))
        texts = contents.directory.name.encode(), contents.manifest.to_bytes(), text
        return Found(outline.from_json(text), texts)

    try:
        newest = recovery.read_newest_of_run(run_dir, known, found, log)
    except OSError as error:
        raise storage_error(error, f"loading a checkpoint of {run_dir.checkpoints}") from error
    if newest.values.get("global_step") == _origin_step(run_dir):
        newest.values["metrics_bytes"] = 0  # they are in the other run's metrics.jsonl
    return newest


def _origin_step(run_dir: RunDir) -> int | None:
    """Return the step of the checkpoint of another run with which this run began."""
    known = records.read_leniently(ProvenanceOrigin, run_dir.provenance)
    return None if known is None or known.origin is None else known.origin.step


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
            read, problem = _read_part(saved, replica, contents)
        problems = gather_texts(problem, context.device)
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


def _read_part(saved: SavedState, replica: Replica, contents: Contents) -> tuple[SavedState, str]:
    """Fill this rank's part of the model; return the rest of the state, and what is damaged."""
    tensors = saved.model, saved.optimizer["state"]
    try:
        state = replica.strategy.read(replica.module, replica.optimizer, tensors, contents)
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


def _without_tensor(value: Any) -> Any:
    return None if isinstance(value, outline.StoredTensor) else value


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
