"""Rank 0's state on another rank: every bit, in tensors of any size and type."""

import torch

from slurm_job_kit.trainer.checkpoint import outline
from slurm_job_kit.trainer.checkpoint import share as module
from slurm_job_kit.trainer.checkpoint.share import SMALL_BYTES, share
from slurm_job_kit.trainer.strategy.interface import Sharding
from tests.core.ranks import CPU, join, results


def state():
    """Small tensors, larger ones between and after them, and plain values."""
    generator = torch.Generator().manual_seed(1)
    large = torch.randn(SMALL_BYTES // 4 + 3, generator=generator)
    return {
        "step": 7,
        "small": [torch.arange(5, dtype=torch.int64), torch.tensor(0.5, dtype=torch.float64)],
        "large": large,
        "empty": torch.empty(0),
        "larger": torch.randn(4, 8, 160, 160, generator=generator),
        "bfloat16": (large[:9].bfloat16(), "text"),
    }


def described(state):
    """All that makes two states the same, bit for bit."""
    tensors = [
        (name, each.dtype, each.shape, each.stride(), bytes(outline.memory_of(each)))
        for name, leaf in outline.leaves(state)
        for each in [outline.local(leaf)]
    ]
    return tensors, outline.to_json(state, Sharding(1, 0))


def shared(folder, rank):
    """What a rank gets of nothing and of rank 0's state; the largest tensor comes in parts."""
    module.BUCKET_BYTES = 3 * 2**20
    join(folder, rank, 2)
    return share(None if rank == 0 else "ignored", CPU), share(None if rank else state(), CPU)


def test_another_rank_gets_the_bits_of_rank_0(tmp_path):
    (_, own), (nothing, found) = results(shared, tmp_path, 2)
    assert nothing is None
    assert described(own) == described(found) == described(state())
