"""Reads the newest undamaged checkpoint on rank 0, while the ranks build their models."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

from ..contract import Contents, ProvenanceOrigin, block_stop_signals, records
from ..errors import storage
from ..process.context import broadcast_bytes
from ..process.run_handle import RankContext
from ..strategy import is_divided
from . import outline, recovery
from .commit import check_owner


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
            with storage(f"looking for a checkpoint in {run_dir.checkpoints}"):
                check_owner(context.run)  # the thread renames a damaged checkpoint
                known = recovery.known_of_run(run_dir)
            if known.newest is not None:
                executor = ThreadPoolExecutor(1, "checkpoint-reader", block_stop_signals)
                self._reading = executor.submit(_read_newest, context, known)
                executor.shutdown(wait=False)
        # All ranks: where a checkpoint follows, none waits for the initial weights of rank 0.
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

    with storage(f"loading a checkpoint of {run_dir.checkpoints}"):
        newest = recovery.read_newest_of_run(run_dir, known, found, log)
    provenance = records.read_leniently(ProvenanceOrigin, run_dir.provenance)
    origin = provenance and provenance.origin  # the checkpoint of another run, to begin with
    if origin and newest.values.get("global_step") == origin.step:
        newest.values["metrics_bytes"] = 0  # they are in the other run's metrics.jsonl
    return newest
