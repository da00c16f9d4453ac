"""Batches of any structure: how samples become one, and how it reaches the device."""

from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from slurm_job_kit.trainer.data.collate import Collate
from slurm_job_kit.trainer.data.sources import Samples
from slurm_job_kit.trainer.data.to_device import move
from slurm_job_kit.trainer.errors import UserCodeError, UserError
from tests.core.data_kit import Given, feed_of

pytestmark = pytest.mark.usefixtures("no_reader_left")


def first(source, function=None, /, **train):
    """(the example, the first micro batch) of a data set."""
    feed = feed_of(source, function, **{"micro_batch_size": 4, **train})
    example, batch = feed.example(), next(feed.micro_batches(0))
    feed.close()
    return example, batch


def test_dicts_nested_tuples_numbers_and_texts_become_one_batch():
    def make(index):
        box = (torch.tensor([index, 1]), {"score": index / 2})
        return {"image": torch.full((2, 3), float(index)), "box": box, "id": index, "name": "x"}

    for batch in first(Given(make)):
        assert [*batch] == ["image", "box", "id", "name"]
        assert batch["image"].shape == (4, 2, 3)
        corners, scores = batch["box"]
        assert corners.shape == (4, 2) and scores["score"].dtype == torch.float64
        assert batch["id"].dtype == torch.int64 and batch["name"] == ["x"] * 4
    assert batch["image"][:, 0, 0].tolist() == corners[:, 0].tolist() == batch["id"].tolist()


def test_a_batch_that_is_one_tensor_stays_one():
    example, batch = first(Given(lambda index: torch.arange(index, index + 3)))
    assert example.shape == batch.shape == (4, 3) and batch.dtype == torch.int64
    assert example[0].tolist() == [0, 1, 2] and torch.equal(example, example[:1].expand(4, 3))


def ragged(index):
    return {"tokens": torch.arange(1 + index % 3), "label": index}


def packed(samples):
    """A user's collate, which changes its samples: all tokens in a row, and where each begins."""
    tokens = [sample.pop("tokens") for sample in samples]
    lengths = torch.tensor([len(each) for each in tokens])
    labels = torch.tensor([sample["label"] for sample in samples])
    return {"tokens": torch.cat(tokens), "lengths": lengths, "labels": labels}


def test_a_collate_of_the_user_makes_batches_of_any_shape(workers=0):
    name = f"{__name__}:packed"
    example, batch = first(Given(ragged), collate=name, workers=workers)
    assert example["tokens"].tolist() == [0, 0, 0, 0] and example["lengths"].tolist() == [1] * 4
    assert batch["lengths"].tolist() == [1 + label % 3 for label in batch["labels"].tolist()]
    assert len(batch["tokens"]) == batch["lengths"].sum()


def test_samples_of_different_sizes_are_named_with_the_key_that_helps():
    words = (
        r"^train.dataset returns sample \d as \{tokens: torch.int64 \(\d,\), label: int\}, but "
        r"sample \d as \{.*\}: make them alike, or name a function of your own in train.collate$"
    )
    with pytest.raises(UserError, match=words):
        first(Given(ragged))
    one = Collate(None)
    words = "returns sample 7 as .*2,.*, but sample 5 as .*3,"
    with pytest.raises(UserError, match=words):
        one([(torch.ones(2), 0), (torch.ones(2), 1), (torch.ones(3), 0)], [7, 3, 5])


def failing(samples):
    raise KeyError("tokens")


def test_an_error_of_a_collate_has_its_key_and_traceback(workers=0):
    name = f"{__name__}:failing"
    with pytest.raises(UserCodeError) as caught:
        first(Given(ragged), collate=name)
    assert str(caught.value) == f"train.collate {name}: KeyError: 'tokens'"
    assert "in failing" in caught.value.trace
    feed = feed_of(Given(ragged), workers=workers, micro_batch_size=4, collate=name)
    with pytest.raises(UserCodeError, match=f"^train.collate {name}: KeyError: 'tokens'$"):
        next(feed.micro_batches(0))
    feed.close()
    with pytest.raises(UserError, match="train.collate: nowhere:f: No module named 'nowhere'"):
        first(Given(ragged), collate="nowhere:f")


def numbered(index):
    return {"x": torch.full((2,), float(index)), "y": torch.tensor(index)}


class Shifted:
    """A transform of whole batches: adds random numbers to one part."""

    takes_batch = True

    def __call__(self, batch: Any, random: Any) -> Any:
        if random is None:
            return batch
        return {**batch, "x": batch["x"] + random.uniform(2)}


def test_a_transform_that_takes_batches_gets_one_of_any_structure():
    example, batch = first(Given(numbered), Shifted(), transform="mine:t")
    assert torch.equal(example["x"], torch.zeros(4, 2))  # as in evaluation
    shift = batch["x"] - batch["y"][:, None]
    assert ((shift >= 0) & (shift < 1)).all() and len(shift.unique()) == 8
    again = first(Given(numbered), Shifted(), transform="mine:t")[1]
    assert torch.equal(again["x"], batch["x"])


def test_a_transform_of_inputs_needs_pairs():
    words = (
        r"^train.transform mine:t gets the inputs of a pair \(inputs, targets\), but train.dataset "
        "returns a dict: give the transform an attribute takes_batch = True"
    )
    with pytest.raises(UserError, match=words):
        first(Given(numbered), lambda inputs, random: inputs, transform="mine:t")


def test_a_pair_of_other_inputs_than_one_tensor_reaches_the_objective_unchanged():
    _, (inputs, labels) = first(Given(lambda index: (numbered(index), index % 2)))
    assert inputs["y"].shape == labels.shape == (4,)


def test_tensors_in_any_container_or_object_move_to_the_device():
    meta = torch.device("meta")
    packed, own = pack_sequence([torch.ones(3), torch.ones(2)]), Own(torch.ones(2))
    batch = {"a": torch.ones(2), "b": [(torch.ones(1), "text", None)], "packed": packed, "own": own}
    moved = move(batch, meta)
    assert moved["a"].device == moved["b"][0][0].device == meta
    assert moved["b"][0][1:] == ("text", None)
    assert moved["packed"].data.is_meta and moved["own"].values.is_meta


def test_a_raw_batch_of_samples_in_memory_may_have_targets_of_any_shape():
    targets = torch.rand(8, 2, 3)
    _, (_, found) = first(Samples(torch.zeros(8, 1), targets))
    assert found.shape == (4, 2, 3)


class Own:
    """A class of the user with tensors."""

    def __init__(self, values):
        self.values = values

    def to(self, device):
        return Own(self.values.to(device))
