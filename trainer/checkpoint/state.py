"""The state of a training that a checkpoint holds: its parts, its file, and how it is restored."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO, Any, cast

import torch
from torch import nn
from torch.utils.serialization import config

from slurm_job_kit.jobs.spec import Train
from slurm_job_kit.trainer.data.sources import is_plain
from slurm_job_kit.trainer.dist.context import DistributedContext
from slurm_job_kit.trainer.errors import UserError
from slurm_job_kit.trainer.model import optim
from slurm_job_kit.trainer.model.build import Data, Replica
from slurm_job_kit.trainer.storage import reader
from slurm_job_kit.trainer.storage.commit import Sink

STATE = "state.pt"
ZIP = b"PK\3\4"  # the older format is a bare pickle, which torch.load would load as well


@dataclass
class TrainState:
    """The position of a training and its measured values, without weights and optimizer.

    window: float64 [2 + metrics], the sum of this rank's `Sums.row` since the last log line, on the
        device.
    window_names: the names of the metrics in it.
    epoch_sums: the sum over all ranks of the logged windows of this epoch, as plain numbers.
    metrics_bytes: the size of metrics.jsonl at the last save.
    environments: software and hardware of the attempts so far, see `trainer.report.environment`.
    best: empty, or {"metric", "value", "step"} of the best evaluation.
    evals_since_best: the number of evaluations after it.
    streams: for each rank the position of its stream; empty where samples are looked up by index.
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

    @classmethod
    def of(cls, data: Data, train: Train) -> TrainSetup:
        """Return the setup of this start."""
        size, samples = data.length.global_batch_size, data.samples_per_epoch
        return cls(size, samples, data.digest, dataclasses.asdict(train))


@dataclass(frozen=True)
class SavedState:
    """Everything that a checkpoint holds. Random numbers are not in it: seed and step give them.

    model, optimizer, scaler: their `state_dict()`; of the scaler empty without fp16.
    state: its `window` has the windows of all ranks, float64 [world size, 2 + metrics].
    """

    model: dict[str, Any]
    optimizer: dict[str, Any]
    optimizer_class: str
    scaler: dict[str, Any]
    setup: TrainSetup
    state: TrainState

    @classmethod
    def of(
        cls, replica: Replica, setup: TrainSetup, state: TrainState, windows: torch.Tensor
    ) -> SavedState:
        """Return the present state of a training; it shares its tensors with the training."""
        return cls(
            model=replica.module.state_dict(),
            optimizer=replica.optimizer.state_dict(),
            optimizer_class=type(replica.optimizer).__name__,
            scaler=replica.scaler.state_dict(),
            setup=setup,
            state=dataclasses.replace(state, window=windows),
        )

    @classmethod
    def parse(cls, files: reader.Files) -> SavedState:
        """Return the state in a checkpoint's files, as `parse`. Raises: Damaged, UserError."""
        return cls.from_dict(parse(files))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> SavedState:
        """Return the state with the values of `to_dict`.

        Raises: UserError if one is missing, because another version of the kit saved it.
        """
        names = [each.name for each in dataclasses.fields(TrainState) if each.name != "window"]
        try:
            return cls(
                model=values["model"],
                optimizer=values["optimizer"],
                optimizer_class=values["optimizer_class"],
                scaler=values["scaler"],
                setup=TrainSetup(
                    *(values["global_batch_size"], values["samples_per_epoch"]),
                    *(values["data_digest"], values["train"]),
                ),
                state=TrainState(values["windows"], **{name: values[name] for name in names}),
            )
        except KeyError as error:
            raise UserError(
                f"the checkpoint has no {error}, because another version of the kit saved it: "
                "continue with the code that the run began with"
            ) from error

    def to_dict(self) -> dict[str, Any]:
        """Return the values as state.pt holds them, in one flat dict."""
        state = {name: value for name, value in vars(self.state).items() if name != "window"}
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "optimizer_class": self.optimizer_class,
            "scaler": self.scaler,
            "windows": self.state.window,
            **vars(self.setup),
            **state,
        }

    def write(self, sink: Sink) -> None:
        """Write the content of state.pt."""
        # torch's checksums take four times as long as the rest of it, and torch.load ignores them.
        # Only for this call: the user's code may save files with torch, too.
        with config.patch("save.compute_crc32", False):  # type: ignore[attr-defined]
            torch.save(self.to_dict(), cast(IO[bytes], sink))


def parse(files: reader.Files) -> dict[str, Any]:
    """Return the values in state.pt. The tensors share its memory: copy those that stay.

    Raises: Damaged if the file holds anything but tensors, plain values and containers of them.
    """
    if STATE not in files:
        raise reader.Damaged(f"it has no {STATE}")
    try:
        with files[STATE] as file:
            if file.read(len(ZIP)) != ZIP:
                raise reader.Damaged(f"{STATE} is not of the format that torch.save writes")
            name = f"/proc/self/fd/{file.fileno()}"
            values = torch.load(name, map_location="cpu", weights_only=True, mmap=True)
    # Which of them is raised depends on where in the file the parser fails.
    except (pickle.UnpicklingError, RuntimeError, ValueError, LookupError, EOFError) as error:
        reason = str(error).partition("\n")[0]
        raise reader.Damaged(f"{STATE} holds more than weights: {reason}") from error
    if not isinstance(values, dict) or not is_plain(values):
        raise reader.Damaged(f"{STATE} holds more than tensors and plain values")
    return values


def restore(saved: SavedState, replica: Replica, context: DistributedContext) -> TrainState:
    """Load a saved state into the replica, and return the rest of it for this rank.

    Raises: UserError if it was saved from another model or optimizer.
    """
    check_same_tensors(saved.model, replica.module, "the checkpoint is")
    optimizer_class = type(replica.optimizer).__name__
    if saved.optimizer_class != optimizer_class:
        raise UserError(
            f"the checkpoint holds the state of {saved.optimizer_class}, but train.optimizer is "
            f"{optimizer_class}"
        )
    replica.module.load_state_dict(saved.model)
    optim.load(replica.optimizer, saved.optimizer)
    if saved.scaler:  # empty where gradients were not scaled
        replica.scaler.load_state_dict(saved.scaler)
    window = _own_window(saved.state.window, context)
    return dataclasses.replace(saved.state, window=window)


def _own_window(windows: torch.Tensor, context: DistributedContext) -> torch.Tensor:
    """Return this rank's window, float64 [2 + metrics], from those of all ranks of the save.

    In a world of another size rank 0 gets the sum of all, which is what is logged.
    """
    if len(windows) == context.world_size:
        return windows[context.rank].clone()
    return windows.sum(dim=0) * context.is_first


def check_same_tensors(saved: Mapping[str, Any], module: nn.Module, whose: str) -> None:
    """Raise a UserError with the first difference between saved tensors and those of a model."""
    own = module.state_dict()
    for name in [*own, *saved]:
        sides = [
            f"{name} {tuple(getattr(state[name], 'shape', ()))}" if name in state else f"no {name}"
            for state in (saved, own)
        ]
        if sides[0] != sides[1]:
            raise UserError(
                f"{whose} of another model: it has {sides[0]}, train.model has {sides[1]}"
            )
