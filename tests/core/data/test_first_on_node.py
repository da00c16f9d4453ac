"""Local rank 0 of each node builds a data set before the other ranks of the node do."""

import dataclasses
import threading

import torch.distributed as dist

from slurm_job_kit.trainer.model.training_data import first_on_node
from tests.core.data_kit import job_of
from tests.core.ranks import place_of


def test_local_rank_0_comes_first(monkeypatch):
    order: list[int] = []
    barrier = threading.Barrier(2)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "barrier", lambda: barrier.wait(30))

    def build(rank):
        with first_on_node(dataclasses.replace(job_of(), distributed=place_of(rank, 2))):
            assert order or not rank
            order.append(rank)

    other = threading.Thread(target=build, args=(1,))
    other.start()
    build(0)
    other.join(30)
    assert order == [0, 1]
