"""The checks of a data set of the user."""

from typing import Any

import numpy as np
import pytest
import torch

from slurm_job_kit.jobs.contract.spec import Train
from slurm_job_kit.trainer.data import data_set
from slurm_job_kit.trainer.data.sources import Samples, content_sha256
from slurm_job_kit.trainer.errors import UserError


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
