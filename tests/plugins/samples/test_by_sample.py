"""Samples that are read one by one, in the rank."""

import random

import numpy as np
import pytest
import torch

from slurm_job_kit.trainer import parts
from slurm_job_kit.trainer.errors import CodeError, UserCodeError, UserError
from tests.core.data.test_feed import SIZE, stream
from tests.core.data_kit import feed_of, pixels_by_sample
from tests.plugins.samples.samples_kit import Chancy, Given


def test_random_numbers_in_a_data_set_depend_on_seed_step_and_sample():
    size = {"global_batch_size": 12, "epochs": 2}
    one = pixels_by_sample(feed_of(Chancy(), **size), range(6))
    other: dict[tuple[int, int], torch.Tensor] = {}
    for rank in range(3):
        feed = feed_of(Chancy(), rank=rank, world_size=3, micro_batch_size=2, **size)
        other |= pixels_by_sample(feed, range(2, 6))
    assert len(other) == 4 * 12
    assert all(torch.equal(one[key], other[key]) for key in other)
    of_first = [image for (_, sample), image in one.items() if sample == 0]
    assert len(of_first) == 2 and not torch.equal(*of_first)
    assert not any(
        torch.equal(image, one[key])
        for key, image in pixels_by_sample(feed_of(Chancy(), seed=1, **size), range(6)).items()
        if key in one
    )


def test_reading_in_the_rank_process_does_not_change_its_generators():
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    expected = torch.rand(1).item(), random.random(), np.random.rand()
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    feed = feed_of(Chancy(), **SIZE)
    feed.example()
    stream(feed, range(2))
    assert (torch.rand(1).item(), random.random(), np.random.rand()) == expected


def test_without_this_plugin_the_data_set_is_refused_with_its_name(monkeypatch):
    monkeypatch.setattr(parts, "PLUGINS", {})
    words = "^train.dataset mine:d is read sample by sample, which needs the plugin samples"
    with pytest.raises(UserError, match=words):
        feed_of(Chancy(), dataset="mine:d", **SIZE).example()


ZERO = torch.zeros(1)


def with_fifth(fifth):
    """A function of samples of which one is another."""
    return lambda index: fifth if index == 5 else (ZERO, 0)


def mixed(index):
    """One sample has no label."""
    return torch.zeros(1) if index == 5 else (torch.zeros(1), 0)


NO_BATCH = r"sample \d+ and those after it make no batch: .*"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (mixed, f"{NO_BATCH}equal.*: return tensors"),
        (with_fifth((ZERO.byte(), 0)), f"{NO_BATCH}torch.float32, torch.uint8: return tensors"),
        (lambda _: (ZERO, {1, 2}), f"{NO_BATCH}set.*: return tensors or num"),
        (with_fifth((ZERO, 3)), "has the label 3, but labels go from 0 to .*, which is 2"),
    ],
)
def test_a_wrong_sample_is_a_user_error_in_one_line(make, words, workers=0):
    with pytest.raises(UserError, match=words) as caught:
        stream(feed_of(Given(make, 40), micro_batch_size=40, workers=workers), range(1))
    assert "\n" not in str(caught.value)


def broken(index):
    """One sample raises an OSError."""
    if index == 7:
        raise OSError("cannot read sample 7\nwhatever else it says")
    return torch.zeros(1), 0


def test_an_exception_of_a_data_set_becomes_its_words_and_a_traceback(workers=0):
    feed = feed_of(Given(broken, 8), micro_batch_size=8, workers=workers, dataset="x")
    with pytest.raises(CodeError) as caught:
        stream(feed, range(1))
    # An OSError is worth another attempt.
    assert not isinstance(caught.value, UserError)
    words = "OSError: cannot read sample 7\nwhatever else it says"
    assert str(caught.value) == f"train.dataset x: {words}"
    assert "if index == 7:" not in caught.value.trace
    assert 'raise OSError("cannot read sample 7' in caught.value.trace


def raises(error):
    """A data set each sample of which raises this."""

    def make(index):
        raise error

    return Given(make, 40)


def test_an_error_in_the_first_sample_is_not_retried():
    with pytest.raises(UserCodeError) as caught:
        feed_of(raises(KeyError("image")), dataset="x").example()
    assert str(caught.value) == "train.dataset x: KeyError: 'image'"
    assert "raise error" in caught.value.trace
    with pytest.raises(CodeError, match="train.dataset x: TimeoutError: no answer") as raised:
        feed_of(raises(TimeoutError("no answer")), dataset="x").example()
    assert not isinstance(raised.value, UserError)
