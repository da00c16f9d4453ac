"""Breaks the product's own restore of a checkpoint: each way must turn a test of exactness red."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

import torch

from slurm_job_kit.trainer import seeds
from slurm_job_kit.trainer.checkpoint.checkpoints import Checkpoints
from slurm_job_kit.trainer.checkpoint.outline import StoredTensor
from slurm_job_kit.trainer.checkpoint.saved_state import TrainState
from slurm_job_kit.trainer.model import optim

Patch = AbstractContextManager[Any]


def drop_momentum() -> Patch:
    """Let each load end with momentum of 0."""
    load = optim.load

    def loaded(optimizer: torch.optim.Optimizer, *arguments: Any, **options: Any) -> None:
        load(optimizer, *arguments, **options)
        for values in optimizer.state.values():
            for name in values.keys() & {"exp_avg", "momentum_buffer"}:
                values[name].zero_()

    return mock.patch.object(optim, "load", loaded)


def swap_shards() -> Patch:
    """Let each rank read the rows at the other end of each tensor."""
    pieces = StoredTensor.pieces

    def mirrored(self: StoredTensor, first: int, count: int) -> Iterator[tuple[str, int, int]]:
        return pieces(self, torch.Size(self.shape).numel() - first - count, count)

    return mock.patch.object(StoredTensor, "pieces", mirrored)


def shift_random_numbers() -> Patch:
    """Let the random numbers after each load be those of the next seed."""
    load, seed_generators = Checkpoints.load, seeds.seed_generators

    @contextmanager
    def patched() -> Iterator[None]:
        shift = 0

        def loaded(self: Checkpoints, *arguments: Any) -> TrainState:
            nonlocal shift
            state = load(self, *arguments)
            shift = int(state.global_step > 0)
            return state

        def seeded(seed: int, device: torch.device) -> None:
            seed_generators(seed + shift, device)

        loading = mock.patch.object(Checkpoints, "load", loaded)
        with loading, mock.patch.object(seeds, "seed_generators", seeded):
            yield

    return patched()


WAYS: dict[str, Callable[[], Patch]] = {
    "drop_momentum": drop_momentum,
    "swap_shards": swap_shards,
    "shift_random_numbers": shift_random_numbers,
}
