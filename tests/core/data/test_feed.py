"""The batches of a rank: from any step on, of any kind of data set."""

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from slurm_job_kit.jobs.contract.spec import Train
from slurm_job_kit.trainer.data.batches import Batches
from slurm_job_kit.trainer.data.feed import HeldOut
from slurm_job_kit.trainer.data.sources import Samples
from slurm_job_kit.trainer.errors import UserCodeError, UserError
from slurm_job_kit.trainer.model.objectives import Classification, DataFacts
from slurm_job_kit.trainer.process.step_agreement import Agreement
from slurm_job_kit.trainer.strategy.interface import Strategy
from slurm_job_kit.trainer.training.evaluation import evaluate
from tests.core.data_kit import Whole, feed_of, job_of
from tests.core.ranks import CPU, place_of

GO_ON = Agreement(stop=False, save=False)
pytestmark = pytest.mark.usefixtures("no_reader_left")
SIZE = {"micro_batch_size": 4, "grad_accum_steps": 2, "epochs": 3}


def images(num):
    """Images with their index in the first pixel."""
    pixels = torch.rand(num, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    pixels[:, 0, 0, 0] = torch.arange(num)
    return Samples(pixels, torch.arange(num) % 3)


def stream(feed, steps):
    """Return all micro batches of a feed, one list for each step."""
    with contextlib.closing(feed):
        return [list(feed.micro_batches(step)) for step in steps]


def assert_same(found, expected):
    assert [len(step) for step in found] == [len(step) for step in expected]
    for batch, other in zip(sum(found, []), sum(expected, []), strict=True):
        assert torch.equal(batch[0], other[0]) and torch.equal(batch[1], other[1])


def test_batches_start_at_any_step_and_may_jump(make=images, workers=0):
    feed = feed_of(make(30), workers=workers, **SIZE)
    straight = stream(feed_of(make(30), **SIZE), range(8))
    jumps = [6, 7, 1, 2, 2]
    assert_same(stream(feed, jumps), [straight[step] for step in jumps])


def test_a_seek_reads_and_computes_nothing_before_its_step():
    seen = []

    def make(indices):
        seen.extend(indices)
        return torch.zeros(len(indices), 1), indices

    next(feed_of(Whole(make, 100), micro_batch_size=4, max_steps=10**13).micro_batches(10**12))
    assert len(seen) == 4


def test_micro_batches_of_samples_follow_the_order_of_the_epoch():
    source = Samples(torch.arange(24, dtype=torch.uint8).unsqueeze(1), torch.arange(24) % 5, 0.5)
    batches = stream(feed_of(source, rank=1, world_size=2, **SIZE), range(1))[0]
    order = Batches.of(Train(micro_batch_size=4, grad_accum_steps=2), 24, 2).order(0)
    for (inputs, labels), own in zip(batches, (order[4:8], order[12:16]), strict=True):
        assert inputs.dtype == torch.float32
        assert torch.equal(inputs.flatten(), own * 0.5) and torch.equal(labels, own % 5)


def of_bytes(indices):
    """Images of bytes."""
    return torch.full((len(indices), 3, 4, 4), 51, dtype=torch.uint8), indices % 3


@pytest.mark.parametrize(
    "source", [Whole(of_bytes), Samples(torch.rand(9, 3, 4, 4), torch.arange(9) % 3)]
)
def test_an_example_has_the_form_of_a_micro_batch(source):
    feed = feed_of(source, micro_batch_size=4, channels_last=True)
    example, batch = feed.example(), next(feed.micro_batches(0))
    for inputs, labels in (example, batch):
        assert inputs.shape == (4, 3, 4, 4) and inputs.dtype == torch.float32
        assert inputs.is_contiguous(memory_format=torch.channels_last)
        assert labels.shape == (4,) and labels.dtype == torch.int64
        assert isinstance(source, Samples) or torch.allclose(inputs, torch.tensor(0.2))  # 51 / 255


def needs_random(inputs, random):
    return inputs + random.uniform(1)[:, :, None]


def draws_wrongly(inputs, random):
    return inputs if random is None else random.uniform()


@pytest.mark.parametrize(
    ("transform", "words"),
    [
        (lambda inputs, random: None, "returns a NoneType, not a tensor of 4 inputs"),
        (lambda inputs, random: inputs[1:], "returns 3 inputs for 4 samples: return one for each"),
        (lambda inputs, random: inputs.sum(), "returns 0 inputs for 4 samples: return one"),
    ],
)
def test_a_transform_must_return_as_many_inputs_as_it_gets(transform, words):
    with pytest.raises(UserError, match=f"^train.transform mine:t {words}"):
        feed_of(images(8), transform, micro_batch_size=4, transform="mine:t").example()


@pytest.mark.parametrize(
    ("transform", "words"),
    [
        (needs_random, "AttributeError: 'NoneType' object has no attribute 'uniform'"),
        (draws_wrongly, "TypeError: SampleRandom.uniform() missing 1 required positional"),
    ],
)
def test_an_error_of_a_transform_in_training_or_evaluation_appears_at_the_start(transform, words):
    feed = feed_of(images(8), transform, micro_batch_size=4, transform="mine:t")
    with pytest.raises(UserCodeError) as caught:
        feed.example()
    assert str(caught.value).startswith(f"train.transform mine:t: {words}")
    assert f"in {transform.__name__}" in caught.value.trace


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ((torch.zeros(3, 1), torch.zeros(4)), "returns 3 inputs for 4 samples: return one for"),
        ((torch.zeros(4, 1), torch.zeros(3)), "returns 3 labels for 4 samples: return one for"),
        ((torch.zeros(4, 1), torch.zeros(())), "returns 0 labels for 4 samples: return one for"),
    ],
)
def test_a_batch_of_the_wrong_form_is_an_error_of_the_data_set(batch, words):
    feed = feed_of(Whole(lambda indices: batch), micro_batch_size=4)
    with pytest.raises(UserError, match=f"^train.dataset {words}"):
        feed.example()


def test_targets_with_a_fraction_stay_and_name_no_classes():
    samples = Samples(torch.zeros(3, 1), torch.tensor([[0.5, -2.0], [1.0, 2.0], [3.0, 4.0]]))
    ((_, targets),) = feed_of(samples, micro_batch_size=3).micro_batches(0)
    assert samples.num_classes is None and targets.dtype == torch.float32
    assert sorted(targets.tolist()) == sorted(samples.labels.tolist())


@pytest.mark.parametrize("num_samples", [2, 11, 600])
def test_held_out_samples_belong_to_one_rank_each(num_samples):
    for world_size in (1, 2, 3, 4):
        seen = []
        for rank in range(world_size):
            held_out = HeldOut(images(num_samples), None, job_of(rank, world_size))
            for inputs, _ in held_out.batches():
                seen += inputs[:, 0, 0, 0].long().tolist()
        assert sorted(seen) == list(range(num_samples))


def test_the_spec_limits_the_held_out_samples_of_a_forward_pass():
    held_out = HeldOut(images(21), None, job_of(1, 2, eval_batch_size=4))
    assert [len(labels) for _, labels in held_out.batches()] == [4, 4, 2]
    assert held_out.num_rounds == 3
    whole = HeldOut(images(300), None, job_of())
    assert [len(labels) for _, labels in whole.batches()] == [256, 44]


def test_an_evaluation_is_exact_beats_and_can_be_repeated(process_group, make=images, workers=0):
    held_out = HeldOut(make(600), None, job_of(workers=workers))
    module = nn.Sequential(nn.Flatten(), nn.Linear(16, 3), nn.Dropout(0.5))
    objective = Classification(DataFacts(Train()), label_smoothing=0.3)
    beats, results = [], []
    replica: Any = SimpleNamespace(
        module=module,
        row=lambda batch: objective(module, batch).row(),
        empty_row=lambda: torch.zeros(3, dtype=torch.float64),
        strategy=Strategy(Train(), place_of(), CPU),
    )
    for _ in range(2):
        totals = evaluate(replica, held_out, lambda: beats.append(1), lambda *_: GO_ON)
        assert totals is not None
        results.append(totals.tolist())
    held_out.close()
    assert results[0] == results[1] and len(beats) == 6 and module.training
    contents = HeldOut(make(600), None, job_of()).batches()
    inputs, labels = (torch.cat(parts) for parts in zip(*contents, strict=True))
    scores = module.eval()(inputs)
    loss = nn.functional.cross_entropy(scores.double(), labels, reduction="sum")
    assert results[0][0] == pytest.approx(loss.item(), rel=1e-6)
    assert results[0][1:] == [600, (scores.argmax(1) == labels).sum().item()]
