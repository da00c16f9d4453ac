"""The means of loss and metrics over all ranks: since the last log line, and over an epoch."""

import torch
import torch.distributed as dist

from ..checkpoint.saved_state import TrainState
from ..model.replica import Replica


def since_last_line(replica: Replica, state: TrainState) -> dict[str, float]:
    """Return the means since the last call by name, `train_loss` first; the host waits for them.

    All ranks call it. The sums go from the state's window to those of the epoch.
    """
    sums = _over_ranks(state.window)
    state.epoch_sums = _with_epoch(state, sums)
    state.window.zero_()
    return _named(replica, sums)


def of_epoch(replica: Replica, state: TrainState) -> dict[str, float]:
    """Return the means over the epoch that ends with this step by name. All ranks call it."""
    rest = _over_ranks(state.window.clone())
    means = _named(replica, _with_epoch(state, rest))
    # `since_last_line` adds these sums again: they belong to no later epoch.
    state.epoch_sums = [-value for value in rest]
    return means


def _over_ranks(sums: torch.Tensor) -> list[float]:
    if dist.get_world_size() > 1:
        dist.all_reduce(sums)  # all ranks: each has the sums of its own samples
    return sums.tolist()  # waits for the device


def _with_epoch(state: TrainState, sums: list[float]) -> list[float]:
    logged = state.epoch_sums or [0.0] * len(sums)
    return [a + b for a, b in zip(logged, sums, strict=True)]


def _named(replica: Replica, sums: list[float]) -> dict[str, float]:
    return {f"train_{name}": value for name, value in replica.means(sums).items()}
