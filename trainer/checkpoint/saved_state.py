"""The state of a training that a checkpoint holds: its parts, how it is restored, what it fits."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ..contract import SpecChange, installation, records
from ..errors import UserError
from ..model.optim import check_groups
from ..model.replica import Replica
from ..process.context import DistributedContext, broadcast_bytes
from ..process.run_handle import RankContext, RunHandle
from ..strategy.interface import Strategy

MAX_DIFFERENCES = 10  # lines of an error


@dataclass(frozen=True)
class TrainSetup:
    """The settings of a training that a load compares with those of the save."""

    global_batch_size: int
    samples_per_epoch: int  # 0 for a stream
    data_digest: str | None  # where the data set states one
    train: dict[str, Any]


@dataclass
class TrainState:
    """The position of a training and its measured values, without weights and optimizer.

    window: float64 [2 + metrics], the sum of this rank's `Sums.row` since the last log line, on the
        device.
    epoch_sums: the sum over all ranks of the logged windows of this epoch, as plain numbers.
    metrics_bytes: the size of metrics.jsonl at the last save.
    environments: software and hardware of the attempts so far, by the plugin describe.
    best: empty, or {"metric", "value", "step"} of the best evaluation.
    streams: positions of the training batches; empty where the step alone tells the samples.
    """

    window: torch.Tensor
    global_step: int = 0
    window_names: tuple[str, ...] = ()
    last_eval_step: int = 0
    evals_since_best: int = 0
    epoch_sums: list[float] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    metrics_bytes: int = 0
    environments: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, Any] = field(default_factory=dict)
    streams: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class SavedState:
    """What a checkpoint has, at a load. Random numbers are not in it: seed and step give them.

    model, optimizer, scaler: their `state_dict()`; of the scaler empty without fp16. Where each
        rank reads what it needs, each tensor is a `StoredTensor`.
    state: its `window` has the windows of all ranks, float64 [world size, 2 + metrics].
    """

    model: dict[str, Any]
    optimizer: dict[str, Any]
    optimizer_class: str
    scaler: dict[str, Any]
    setup: TrainSetup
    state: TrainState

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> SavedState:
        """Return the state with these values, which `saved_values` has returned at the save.

        Raises: UserError if one is missing, because another version of the kit saved it.
        """
        names = [each.name for each in dataclasses.fields(TrainState) if each.name != "window"]
        try:
            setup = TrainSetup(*(values[each.name] for each in dataclasses.fields(TrainSetup)))
            state = TrainState(values["windows"], **{name: values[name] for name in names})
            kind, scaler = values["optimizer_class"], values["scaler"]
            return cls(values["model"], values["optimizer"], kind, scaler, setup, state)
        except KeyError as error:
            what = f"the checkpoint has no {error}, because another version of the kit saved it"
            raise UserError(what, "continue with the code that the run began with") from error


def saved_values(
    replica: Replica, setup: TrainSetup, state: TrainState, windows: torch.Tensor
) -> dict[str, Any]:
    """Return the present state of a training as a checkpoint holds it, in one flat dict.

    It shares its tensors with the training. windows: of all ranks, as in `SavedState.state`.
    """
    return {
        "model": model_parts(replica.module, replica.strategy),
        "optimizer": optimizer_parts(replica),
        "optimizer_class": type(replica.optimizer).__name__,
        "scaler": replica.precision.scaler.state_dict(),
        "windows": windows,
        **vars(setup),
        **{name: value for name, value in vars(state).items() if name != "window"},
    }


def model_parts(module: nn.Module, strategy: Strategy) -> dict[str, Any]:
    """Return the model's `state_dict()` with this rank's rows of the divided tensors."""
    return {name: strategy.part(value) for name, value in module.state_dict().items()}


def optimizer_parts(replica: Replica) -> dict[str, Any]:
    """Return the optimizer's `state_dict()` with this rank's rows of the divided tensors."""
    saved, owners = replica.optimizer.state_dict(), parameters_of(replica.optimizer)
    state = {
        index: {key: replica.strategy.part(value, owners[index]) for key, value in values.items()}
        for index, values in saved["state"].items()
    }
    return {**saved, "state": state}


def parameters_of(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """Return the parameters in the order in which `state_dict()` counts them."""
    return [each for group in optimizer.param_groups for each in group["params"]]


def check_fits(saved: SavedState, replica: Replica) -> None:
    """Raise a UserError if the state was saved from another model or optimizer."""
    own = model_parts(replica.module, replica.strategy)
    check_same_tensors(saved.model, own, "the checkpoint is")
    optimizer_class = type(replica.optimizer).__name__
    if saved.optimizer_class != optimizer_class:
        what = f"the checkpoint holds the state of {saved.optimizer_class}"
        raise UserError(f"{what}, but train.optimizer is {optimizer_class}")
    check_groups(replica.optimizer, saved.optimizer)


def restored_state(saved: SavedState, replica: Replica, context: DistributedContext) -> TrainState:
    """Return the position of a saved training for this rank; load the scaler of the gradients."""
    if saved.scaler:  # empty where gradients were not scaled
        replica.precision.scaler.load_state_dict(saved.scaler)
    windows = saved.state.window
    # In a world of another size rank 0 gets the sum of all, which is what is logged.
    own = windows.sum(dim=0) * context.is_first
    if len(windows) == context.world_size:
        own = windows[context.rank].clone()
    return dataclasses.replace(saved.state, window=own)


def check_same_tensors(saved: Mapping[str, Any], own: Mapping[str, Any], whose: str) -> None:
    """Raise a UserError with the differences between saved tensors and those of a model."""
    there, here = (
        {name: tuple(getattr(value, "shape", ())) for name, value in state.items()}
        for state in (saved, own)
    )
    differences = [
        f"{name}: {there.get(name, 'none')} there, {here.get(name, 'none')} in train.model"
        for name in dict.fromkeys([*own, *saved])
        if there.get(name) != here.get(name)
    ]
    if differences:
        more = len(differences) - MAX_DIFFERENCES
        lines = differences[:MAX_DIFFERENCES] + ([f"and {more} more"] if more > 0 else [])
        # The record of the attempt has the first line only.
        hint = "hint: set train.model and train.model_args as they were at the save"
        raise UserError("\n  ".join([f"{whose} of another model: {lines[0]}", *lines[1:], hint]))


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
    changes = [
        f"train.{key} was {json.dumps(saved.train[key])}, is {json.dumps(value)}"
        for key, value in now.train.items()
        if key in saved.train and saved.train[key] != value  # not a key that this kit alone has
    ]
    if changes and not is_change_accepted:
        resume = installation.command("resume", context.run.dir.run_id, "KEY=VALUE")
        what = f"the checkpoint was saved with another spec: {', '.join(changes)}"
        raise UserError(f"{what}; {resume} shows the changes and accepts --yes")
    for change in changes:
        context.distributed.log(f"changed on request: {change}")
