"""How a batch of any structure reaches the device."""

from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from slurm_job_kit.trainer.data.to_device import move
from slurm_job_kit.trainer.errors import UserError
from tests.core.data_kit import Whole, first


def numbered(indices):
    return {"x": indices.float()[:, None].expand(-1, 2), "y": indices}


class Shifted:
    """A transform of whole batches: adds random numbers to one part."""

    takes_batch = True

    def __call__(self, batch: Any, random: Any) -> Any:
        if random is None:
            return batch
        return {**batch, "x": batch["x"] + random.uniform(2)}


def test_a_transform_that_takes_batches_gets_one_of_any_structure():
    example, batch = first(Whole(numbered), Shifted(), transform="mine:t")
    assert torch.equal(example["x"], torch.zeros(4, 2))  # as in evaluation
    shift = batch["x"] - batch["y"][:, None]
    assert ((shift >= 0) & (shift < 1)).all() and len(shift.unique()) == 8
    again = first(Whole(numbered), Shifted(), transform="mine:t")[1]
    assert torch.equal(again["x"], batch["x"])


def test_a_transform_of_inputs_needs_pairs():
    words = (
        r"^train.transform mine:t gets the inputs of a pair \(inputs, targets\), but train.dataset "
        "returns a dict\n  hint: give the transform an attribute takes_batch = True"
    )
    with pytest.raises(UserError, match=words):
        first(Whole(numbered), lambda inputs, random: inputs, transform="mine:t")


def test_a_pair_of_other_inputs_than_one_tensor_reaches_the_objective_unchanged():
    _, (inputs, labels) = first(Whole(lambda indices: (numbered(indices), indices % 2)))
    assert inputs["y"].shape == labels.shape == (4,)


def test_tensors_in_any_container_or_object_move_to_the_device():
    meta = torch.device("meta")
    packed, own = pack_sequence([torch.ones(3), torch.ones(2)]), Own(torch.ones(2))
    batch = {"a": torch.ones(2), "b": [(torch.ones(1), "text", None)], "packed": packed, "own": own}
    moved = move(batch, meta)
    assert moved["a"].device == moved["b"][0][0].device == meta
    assert moved["b"][0][1:] == ("text", None)
    assert moved["packed"].data.is_meta and moved["own"].values.is_meta


class Own:
    """A class of the user with tensors."""

    def __init__(self, values):
        self.values = values

    def to(self, device):
        return Own(self.values.to(device))
