"""Local rank 0 of each node builds a data set before the other ranks of the node do."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from slurm_job_kit.trainer.process import turns


def run_as(local_rank, work):
    place = SimpleNamespace(world_size=2, group_rank=0, local_rank=local_rank)
    run = SimpleNamespace(dir=SimpleNamespace(run_id="x"), attempt=1)
    context: Any = SimpleNamespace(distributed=place, run=run)
    with turns.first_on_node(context):
        work()


@pytest.mark.parametrize("fails", [False, True])
def test_local_rank_0_comes_first_and_lets_the_others_in_even_if_it_fails(monkeypatch, fails):
    order, store = [], dist.HashStore()
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(turns, "rendezvous_store", lambda: store)
    other = threading.Thread(target=run_as, args=(1, lambda: order.append("other")))
    other.start()

    def build():
        assert other.is_alive()
        order.append("first")
        if fails:
            raise ValueError

    if fails:
        with pytest.raises(ValueError):
            run_as(0, build)
    else:
        run_as(0, build)
    other.join(30)
    assert order == ["first", "other"]
