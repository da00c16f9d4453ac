"""How samples of any structure become a batch."""

import pytest
import torch

from slurm_job_kit.trainer.errors import UserCodeError, UserError
from tests.core.data_kit import feed_of, first
from tests.plugins.samples.samples_kit import Given

pytestmark = pytest.mark.usefixtures("no_reader_left")


def test_a_sample_that_a_batch_has_once_is_not_copied():
    weight = torch.ones(2, requires_grad=True)
    data = Given(lambda index: (weight * index, index))  # deepcopy refuses such a tensor
    example, batch = first(data, micro_batch_size=1)
    assert example[0].tolist() == [[0, 0]] and batch[0].shape == (1, 2)


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
