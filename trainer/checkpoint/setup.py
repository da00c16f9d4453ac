"""The settings of a training, compared between the save of a checkpoint and its load."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from ..contract import SpecChange, installation, records
from ..errors import UserError
from ..process.context import broadcast_bytes
from ..process.run_handle import RankContext, RunHandle


@dataclass(frozen=True)
class TrainSetup:
    """The settings of a training that a load compares with those of the save.

    samples_per_epoch: 0 for a stream.
    data_digest: of the training data, where the data set states one.
    train: the keys and values of the spec's section `train`.
    """

    global_batch_size: int
    samples_per_epoch: int
    data_digest: str | None
    train: dict[str, Any]


def spec_sha256(run: RunHandle) -> str:
    """Return the SHA-256 of the spec as its file has it."""
    return hashlib.sha256(run.spec.to_json().encode()).hexdigest()


def check_setup(saved: TrainSetup, now: TrainSetup, context: RankContext) -> None:
    """Refuse a checkpoint of other batches or, unless the user confirmed it, of another spec.

    All ranks call it. Raises: UserError.
    """
    # Rank 0 alone reads the file: on another node it may be old, and all must decide alike.
    # A user confirmed the changes of exactly this spec at a resume.
    is_accepted = context.distributed.is_first and any(
        change.spec_sha256 == spec_sha256(context.run)
        for change in records.read_lines(SpecChange, context.run.dir.changes)
    )
    is_change_accepted = bool(broadcast_bytes(b"yes" if is_accepted else b"", context.device))
    if saved.global_batch_size != now.global_batch_size:
        what = f"the checkpoint was saved with a global batch of {saved.global_batch_size}"
        more = f"this start has {now.global_batch_size}"
        raise UserError(f"{what}, {more}: set train.global_batch_size to {saved.global_batch_size}")
    if saved.samples_per_epoch != now.samples_per_epoch:
        what = f"the checkpoint was saved with {saved.samples_per_epoch} samples per epoch"
        more = f"this start has {now.samples_per_epoch}: bring back the data set of that save"
        raise UserError(f"{what}, {more}, or begin a new run with train.init_from")
    if saved.data_digest != now.data_digest:
        what = f"the data of train.dataset {now.train['dataset']} differ from those of the save"
        hint = "bring back the files (or the version of Python whose source they are)"
        raise UserError(f"{what}: {hint}, or begin a new run with train.init_from")
    changes = changed_keys(saved.train, now.train)
    if changes and not is_change_accepted:
        resume = installation.command("resume", context.run.dir.run_id, "KEY=VALUE")
        what = f"the checkpoint was saved with another spec: {', '.join(changes)}"
        raise UserError(f"{what}; {resume} shows the changes and accepts --yes")
    for change in changes:
        context.distributed.log(f"changed on request: {change}")


def changed_keys(saved: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return a text for each key of the section `train` that both have with different values."""
    return [
        f"train.{key} was {json.dumps(saved[key])}, is {json.dumps(now[key])}"
        for key in now
        if key in saved and saved[key] != now[key]
    ]
