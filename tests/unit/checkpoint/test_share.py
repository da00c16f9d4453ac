"""Rank 0's state on another rank: every bit, in tensors of any size and type."""

from __future__ import annotations

import multiprocessing
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

from slurm_job_kit.trainer.checkpoint.share import SMALL_BYTES, share

LIMIT_S = 60


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


def leaves(value):
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, (list, tuple)):
        return [leaf for each in value for leaf in leaves(each)]
    return [value]


def is_same(one, other):
    if not isinstance(one, torch.Tensor):
        return type(one) is type(other) and one == other
    is_like = (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
    return is_like and torch.equal(one, other)


def second_rank(address, pipe):
    """Report what this rank got, as text; "" if it is what rank 0 has."""
    try:
        torch.set_num_threads(1)  # a fork has no threads of torch's pool
        dist.init_process_group("gloo", init_method=address, rank=1, world_size=2)
        cpu = torch.device("cpu")
        nothing, found, expected = share("ignored", cpu), share(None, cpu), state()
        pairs = zip(leaves(found), leaves(expected), strict=True)
        pipe.send("" if nothing is None and all(is_same(*pair) for pair in pairs) else repr(found))
    except BaseException:
        pipe.send(traceback.format_exc())


def test_another_rank_gets_the_bits_of_rank_0(tmp_path, monkeypatch):
    # So that the largest tensor is sent in parts; the fork inherits it.
    monkeypatch.setattr("slurm_job_kit.trainer.checkpoint.share.BUCKET_BYTES", 3 * 2**20)
    address = f"file://{tmp_path}/store"
    receive, send = multiprocessing.Pipe(duplex=False)
    fork = multiprocessing.get_context("fork")
    peer = fork.Process(target=second_rank, args=(address, send))
    peer.start()
    limit = timedelta(seconds=LIMIT_S)
    dist.init_process_group("gloo", init_method=address, rank=0, world_size=2, timeout=limit)
    try:
        own = state()
        assert share(None, torch.device("cpu")) is None
        assert share(own, torch.device("cpu")) is own
        assert receive.poll(LIMIT_S)
        assert receive.recv() == ""
    finally:
        dist.destroy_process_group()
        peer.join(LIMIT_S)
        peer.kill()
