"""What happens to one batch: an objective, such as classification, and the sums that it returns.

An objective gets the model and a batch, and returns `Sums`. The kit divides the loss and the
metrics by the number of items of all micro batches of all ranks. So the gradient is the exact mean
over the items, however many each batch has.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from ..contract import Train
from ..errors import UserError
from ..parts import parts
from ..user_code import call, is_user_code, load, user_code

IGNORED = -100  # a target without a loss; the default of torch's cross_entropy


@dataclass(frozen=True)
class Sums:
    """What an objective returns for one batch.

    loss: float [], the sum of the losses of all items, with its graph.
    num_items: how many items the sum is over. An int stands for a number that is the same for
        every training batch of one size. A tensor [] is added up over all ranks in each step.
    metrics: for each name the sum over the items, a tensor [].
    """

    loss: torch.Tensor
    num_items: int | torch.Tensor
    metrics: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def row(self) -> torch.Tensor:
        """Return loss, number of items and metrics as float64 [2 + metrics], without the graph."""
        if self.loss.device.type != "cpu":
            return self.row_on_device()
        # As numbers: a quarter of the time of small operators.
        values = (self.loss, self.num_items, *self.metrics.values())
        numbers = [each if isinstance(each, int) else each.item() for each in values]
        return torch.from_numpy(np.array(numbers, dtype=np.float64))

    def row_on_device(self) -> torch.Tensor:
        """Return the same by operators alone: the host does not wait for the device."""
        loss = self.loss.detach().double()
        items = self.num_items
        # `full` fills on the device; a copy of a Python number would make the host wait.
        count = torch.full_like(loss, items) if isinstance(items, int) else items
        values = (count, *self.metrics.values())
        return torch.stack([loss, *(value.detach().double() for value in values)])

    def zero_sums(self) -> Sums:
        """Return sums that add nothing; their backward pass still exchanges the gradients."""
        metrics = {name: value * 0 for name, value in self.metrics.items()}
        return Sums(self.loss * 0, self.num_items * 0, metrics)


class Objective(Protocol):
    """A callable from the model and a batch to sums.

    It may also have `derive(means)`: from the means of loss and metrics, by name, it returns more
    values to log, such as a perplexity.
    """

    def __call__(self, model: nn.Module, batch: Any) -> Sums: ...


@dataclass(frozen=True)
class DataFacts:
    """What the data set states about its samples, which a part of a plugin has to fit to.

    None where the data set has no such attribute.
    num_classes: labels go from 0 to num_classes - 1.
    bytes_per_token: the mean length of a token's text.
    """

    train: Train
    num_classes: int | None = None
    bytes_per_token: float | None = None
    vocab_size: int | None = None


class Classification:
    """Cross-entropy and accuracy of scores [n, C, ...] and integer labels [n, ...].

    A batch is a pair (inputs, labels). An item is a label; labels of one dimension are not masked,
    of others IGNORED marks those without a loss (pixels of a segmentation).
    """

    def __init__(self, data: DataFacts, label_smoothing: float | None = None) -> None:
        self._data = data
        own = data.train.label_smoothing
        self._label_smoothing = own if label_smoothing is None else label_smoothing

    def __call__(self, model: nn.Module, batch: Any) -> Sums:
        inputs, labels = as_pair(batch, self._data.train.dataset, "classification")
        scores = model(inputs)
        self._check(scores, labels)
        labels = labels.long()
        smoothing = self._label_smoothing if model.training else 0.0
        loss = functional.cross_entropy(scores, labels, reduction="sum", label_smoothing=smoothing)
        num_items = len(labels) if labels.ndim == 1 else (labels != IGNORED).sum()
        return Sums(loss, num_items, {"accuracy": (scores.argmax(dim=1) == labels).sum()})

    def _check(self, scores: object, labels: torch.Tensor) -> None:
        classes, train = self._data.num_classes, self._data.train
        if labels.is_floating_point():
            what = f"train.dataset {train.dataset} returns labels {labels.dtype}"
            hint = "make them int64, or take train.objective regression"
            raise UserError(f"{what} {tuple(labels.shape)}", hint)
        if isinstance(scores, torch.Tensor) and classes not in (None, *scores.shape[1:2]):
            what = f"train.model {train.model} returns scores of shape {tuple(scores.shape)}"
            raise UserError(f"{what}, but the labels of {train.dataset} name {classes} classes")


def as_pair(batch: Any, dataset: str, objective: str) -> tuple[Any, torch.Tensor]:
    """Return the (inputs, targets) of a batch. Raises UserError for another structure."""
    if isinstance(batch, (tuple, list)) and len(batch) == 2 and isinstance(batch[1], torch.Tensor):
        return batch[0], batch[1]
    what = f"train.objective {objective} needs batches (inputs, targets), but train.dataset"
    what += f" {dataset} returns a {type(batch).__name__}"
    raise UserError(what, "return pairs, or name your own train.objective")


BUILT_IN = {"classification": Classification}


def create(data: DataFacts) -> Objective:
    """Return the objective of `train.objective`.

    It is one of the core or of a plugin; or `package.module:callable`, a class, which is called
    with train.objective_args, or a function, which gets them besides model and batch.
    """
    name, args = data.train.objective, data.train.objective_args
    function = load("train.objective", name, {**BUILT_IN, **parts("objective")})
    if not is_user_code(name):
        objective: Objective = call("train.objective", function, args, data)
        return objective
    if not inspect.isclass(function):
        return _Users(name, function, args)
    made = call("train.objective", function, args)
    if isinstance(made, nn.Module) and any(each.requires_grad for each in made.parameters()):
        what = "trainable parameters, but the optimizer gets those of train.model"
        hint = "make them part of the model, or set their requires_grad to False"
        raise UserError(f"train.objective: {name} has {what}", hint)
    return _Users(name, made, {})


@dataclass(frozen=True)
class _Users:
    """An objective of the user, called with its arguments; what it returns is checked."""

    name: str
    function: Callable[..., Sums]
    args: Mapping[str, Any]

    def __call__(self, model: nn.Module, batch: Any) -> Sums:
        sums = self.function(model, batch, **self.args)
        check_sums(sums, self.name)
        return sums

    def derive(self, means: Mapping[str, float]) -> dict[str, float]:
        """Return the numbers of the user's `derive`, if there is one. Raises: UserError."""
        own = getattr(self.function, "derive", None)
        if own is None:
            return {}
        with user_code("train.objective", self.name):
            metrics = own(dict(means))
            if taken := sorted(metrics.keys() & means.keys()):
                what = f"train.objective {self.name}: derive returns {taken[0]}"
                raise UserError(f"{what}, which is a mean already: rename it")
            return {name: float(value) for name, value in metrics.items()}


def means(names: tuple[str, ...], row: list[float], objective: Objective) -> dict[str, float]:
    """Return the mean loss and metrics of summed rows, and what the objective derives from them.

    names: of the metrics. row: summed rows of `Sums.row`.
    """
    loss, num_items, *sums = row
    count = max(num_items, 1.0)
    metrics = {"loss": loss / count}
    metrics |= {name: value / count for name, value in zip(names, sums, strict=True)}
    if (derive := getattr(objective, "derive", None)) is not None:
        metrics |= derive(metrics)
    return metrics


def check_sums(sums: object, name: str) -> None:
    """Raise UserError unless an objective returned sums that can be added up and differentiated."""
    where = f"train.objective {name}"
    if not isinstance(sums, Sums):
        what = f"{where} returns a {type(sums).__name__}: return slurm_job_kit.trainer.api.Sums"
        raise UserError(what)
    for key, value in {"its loss": sums.loss, "num_items": sums.num_items, **sums.metrics}.items():
        is_count = key == "num_items" and type(value) is int
        if not is_count and (not isinstance(value, torch.Tensor) or value.ndim):
            shape = f" of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else ""
            what = f"{where} returns {key} as a {type(value).__name__}{shape}"
            raise UserError(f"{what}: make it the sum over the items, a tensor []")
    if torch.is_grad_enabled() and not sums.loss.requires_grad:
        what = "the loss depends on no trainable parameter of train.model"
        raise UserError(f"{where}: {what}", "remove detach() or no_grad() from model or objective")
    if "loss" in sums.metrics:
        raise UserError(f"{where} returns a metric named loss: that name is taken by the loss")
