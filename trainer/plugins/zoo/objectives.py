"""The objectives of this plugin: regression and language models."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from ...errors import UserError
from ...model.models import described
from ...model.objectives import IGNORED, DataFacts, Objective, Sums, as_pair

LOSSES: dict[str, Callable[..., torch.Tensor]] = {
    "mse": functional.mse_loss,
    "mae": functional.l1_loss,
    "huber": functional.huber_loss,
}


class Regression:
    """The distance between outputs and targets of the same shape [n, ...]; an item is a number.

    A batch is a pair (inputs, targets); targets [n] fit outputs [n, 1].
    """

    def __init__(self, data: DataFacts, loss: str = "mse") -> None:
        if loss not in LOSSES:
            what = f"train.objective_args.loss is {loss!r}: write one of {', '.join(LOSSES)}"
            raise UserError(what)
        self._data = data
        self._loss = LOSSES[loss]

    def __call__(self, model: nn.Module, batch: Any) -> Sums:
        train = self._data.train
        inputs, targets = as_pair(batch, train.dataset, "regression")
        outputs = model(inputs)
        shape = getattr(outputs, "shape", None)
        if shape == (*targets.shape, 1):
            outputs = outputs.squeeze(-1)
        elif shape != targets.shape:
            what = f"train.model {train.model} returns {described(outputs)} for targets of shape "
            what += f"{tuple(targets.shape)} of {train.dataset}"
            raise UserError(what, "have it return a tensor of that shape")
        targets = targets.to(outputs.dtype)
        difference = outputs.detach() - targets
        metrics = {"mse": difference.square().sum(), "mae": difference.abs().sum()}
        return Sums(self._loss(outputs, targets, reduction="sum"), targets.numel(), metrics)

    def derive(self, means: Mapping[str, float]) -> dict[str, float]:
        return {"rmse": math.sqrt(means["mse"])}


class LanguageModel:
    """Cross-entropy of the next token; an item is a token.

    A batch is int64 [n, T + 1], of which the first T tokens are the inputs and the last T the
    targets. Or it is a pair (inputs [n, T], targets [n, T]), or a dict with `input_ids` and
    `labels` of one shape, where `labels` are not shifted; IGNORED marks targets without a loss.
    The model returns logits [n, T, vocabulary], alone or as the attribute `logits`.
    """

    def __init__(self, data: DataFacts) -> None:
        self._data = data

    def __call__(self, model: nn.Module, batch: Any) -> Sums:
        inputs, targets, is_masked = self._tokens(batch)
        outputs = model(inputs)
        logits = getattr(outputs, "logits", outputs)
        if not isinstance(logits, torch.Tensor) or logits.shape[:-1] != targets.shape:
            what = f"train.model {self._data.train.model} returns {described(logits)} for "
            hint = "have it return logits [n, T, vocabulary]"
            raise UserError(f"{what}targets of shape {tuple(targets.shape)}", hint)
        flat = targets.reshape(-1)
        loss = functional.cross_entropy(logits.flatten(0, -2), flat, reduction="sum")
        return Sums(loss, (flat != IGNORED).sum() if is_masked else flat.numel())

    def _tokens(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor, bool]:
        """Return (inputs [n, T], targets [n, T], whether targets may be IGNORED)."""
        if isinstance(batch, torch.Tensor):
            return batch[:, :-1], batch[:, 1:], False
        if isinstance(batch, Mapping) and {"input_ids", "labels"} <= batch.keys():
            return batch["input_ids"][:, :-1], batch["labels"][:, 1:], True
        inputs, targets = as_pair(batch, self._data.train.dataset, "language_model")
        return inputs, targets, True

    def derive(self, means: Mapping[str, float]) -> dict[str, float]:
        """Return perplexity, and bits per byte where the length of a token is known."""
        loss = means["loss"]
        values = {"perplexity": math.exp(min(loss, 700.0))}  # e^710 is more than a float holds
        if self._data.bytes_per_token is not None:
            values["bits_per_byte"] = loss / math.log(2) / self._data.bytes_per_token
        return values


BUILT_IN: dict[str, Callable[..., Objective]] = {
    "regression": Regression,
    "language_model": LanguageModel,
}
