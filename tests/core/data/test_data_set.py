"""A data set of the user: its checks, and the rank that builds it first."""

import dataclasses
import threading
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from slurm_job_kit.jobs.contract.spec import Train
from slurm_job_kit.trainer.data import data_set
from slurm_job_kit.trainer.data.sources import Samples, content_sha256
from slurm_job_kit.trainer.errors import UserError
from slurm_job_kit.trainer.model.training_data import first_on_node
from tests.core.data_kit import job_of
from tests.core.ranks import place_of


def parts(name: str, args: dict[str, Any]) -> data_set.Parts:
    return data_set.create(Train(dataset=name, dataset_args=args), 0, 1)


def test_labels_name_classes():
    inputs = torch.zeros(3, 2)
    with pytest.raises(UserError, match="has the label -1, but"):
        Samples(inputs, torch.tensor([0, -1, 2]))
    with pytest.raises(UserError, match="has the label 2, but .* is 1"):
        Samples(inputs, torch.tensor([0, 1, 2]), num_classes=2)
    with pytest.raises(UserError, match="3 inputs, but 2 labels"):
        Samples(inputs, torch.tensor([0, 1]))


def test_a_callable_without_a_pair_of_data_sets_is_a_user_error():
    with pytest.raises(UserError, match=r":Counter returns a Counter, not a pair"):
        parts("collections:Counter", {})
    for held_out, words in (
        (3, "a int as its held-out part: it needs __len__, and either batch and to, or"),
        ([], "a held-out part without samples"),
        (iter([]), "a list_iterator as its held-out part: it needs .*; only the train part may"),
    ):
        with pytest.raises(UserError, match=f"^train.dataset: .*:pair returns {words}"):
            parts(f"{__name__}:pair", {"train": [1], "held_out": held_out})


def pair(train, held_out):
    return train, held_out


def test_the_held_out_part_may_be_missing():
    assert parts(f"{__name__}:pair", {"train": [1], "held_out": None}) == ([1], None, False)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"x": torch.ones(2), "name": "cat"}, {"x": torch.ones(2), "name": "dog"}),
        (np.arange(3), np.arange(3) + 1),
        ((b"cat", 1), (b"dog", 1)),
    ],
)
def test_what_a_collate_function_takes_has_a_digest(one, other):
    assert content_sha256(one) == content_sha256(one) != content_sha256(other)


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
