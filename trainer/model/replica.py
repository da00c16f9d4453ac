"""This rank's model, optimizer and objective, and the metric that chooses the best checkpoint."""

import functools
from dataclasses import dataclass

import torch
from torch import nn

from ..data.sources import Batch
from ..errors import UserError
from ..strategy.interface import Strategy
from .objectives import Objective, Sums, means
from .precision import Precision


@dataclass(frozen=True)
class BestMetric:
    """The held-out metric that chooses the best checkpoint."""

    name: str
    mode: str  # "min" or "max"

    def is_better(self, value: float, other: float) -> bool:
        return value > other if self.mode == "max" else value < other


@dataclass(frozen=True)
class Replica:
    """This rank's model, optimizer and objective.

    wrapped: what the objective calls in training, such as the model under DDP.
    batch_size: the number of samples of the largest micro batch.
    fixed_items: the number of items of every micro batch; None if it differs.
    idle_rounds: the micro batches of a step, from 0, that count on other ranks only.
    metric_names: of the objective, in the order of `Sums.row`.
    best: None where no metric chooses a best checkpoint.
    """

    wrapped: nn.Module
    module: nn.Module
    strategy: Strategy
    optimizer: torch.optim.Optimizer
    precision: Precision
    objective: Objective
    batch_size: int
    fixed_items: int | None
    metric_names: tuple[str, ...]
    best: BestMetric | None
    idle_rounds: frozenset[int] = frozenset()

    def row(self, batch: Batch) -> torch.Tensor:
        """Return the `Sums.row` of a batch, without the wrapper that exchanges gradients."""
        with self.precision.autocast():
            return self.row_of(self.objective(self.module, batch))

    def empty_row(self) -> torch.Tensor:
        """Return a sum of no `Sums.row`, float64 [2 + metrics] on the device."""
        device = self.precision.device_type  # a parameter may be offloaded
        return torch.zeros(2 + len(self.metric_names), dtype=torch.float64, device=device)

    def row_of(self, sums: Sums) -> torch.Tensor:
        """Return `Sums.row`. Raises: UserError for other metrics than those of the first batch."""
        if tuple(sums.metrics) != self.metric_names:
            both = (self.metric_names, sums.metrics)
            expected, actual = (", ".join(names) or "none" for names in both)
            what = f"train.objective returned the metrics {expected} for one batch and {actual} for"
            hint = "return the same ones, in the same order, in training and evaluation"
            raise UserError(f"{what} another", hint)
        return sums.row()

    @functools.cached_property
    def parameters(self) -> tuple[nn.Parameter, ...]:
        return tuple(self.module.parameters())

    def means(self, row: list[float]) -> dict[str, float]:
        """Return loss, metrics and what follows from them, of the sum of `Sums.row`."""
        return means(self.metric_names, row, self.objective)
