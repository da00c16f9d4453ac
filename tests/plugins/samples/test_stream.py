"""Streams: each rank's batches, from any step on, are those of a training without a stop."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from slurm_job_kit.jobs.contract.spec import Train
from slurm_job_kit.trainer.data import data_set
from slurm_job_kit.trainer.errors import CodeError, UserCodeError, UserError
from slurm_job_kit.trainer.plugins.samples.stream import StreamBatches
from tests.core.data_kit import job_of

pytestmark = pytest.mark.usefixtures("no_reader_left")


class Numbers(IterableDataset[Any]):
    """The numbers from 0, one dict for each, and random numbers of two generators."""

    def __init__(self, num_samples=10, base=0):
        self.num_samples, self.base, self.at = num_samples, base, 0

    def __iter__(self):
        while self.at < self.num_samples:
            self.at += 1
            yield {"x": self.base + self.at - 1, "noise": torch.rand(()) + random.random()}
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Epochs(Numbers):
    """Numbers in another order in each pass; the order is part of no state."""

    epoch = -1

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        for sample in super().__iter__():
            yield {**sample, "x": (sample["x"] * 3 + self.epoch) % 10 + 100 * self.epoch}


def stream_of(stream, rank=0, world_size=1, is_own=False, transform=None, **context):
    """Return the training batches of a rank's stream; a micro batch of 2, two of them in a step."""
    context = {"micro_batch_size": 2, "grad_accum_steps": 2, "max_steps": 99, **context}
    job = job_of(rank=rank, world_size=world_size, **context)
    return StreamBatches(stream, is_own, transform, job)


def read(batches, steps):
    """[(x, noise) of each step of `steps`]; the batches are closed after it."""
    samples = []
    for step in steps:
        parts = [*batches.micro_batches(step)]
        samples.append(
            [torch.cat([part[key] for part in parts]).tolist() for key in ("x", "noise")]
        )
    batches.close()
    return samples


def places(batches):
    """The positions of a save, without what tells whether a resume is exact."""
    return [
        {key: value for key, value in each.items() if key != "last"} for each in batches.positions()
    ]


def numbers(found):
    return [sample for x, _ in found for sample in x]


def continued(make, stop, saved_workers=0, workers=0, **share):
    """The steps from `stop` to 11 of a training that was stopped after `stop` steps."""
    first = stream_of(make(), workers=saved_workers, **share)
    first.example()
    read(first, range(stop))
    later = stream_of(make(), workers=workers, **share)
    later.example()
    later.restore(first.positions())
    return read(later, range(stop, 11))


# 12 steps of 4 samples: four passes over 10 samples, whose ends come in and between batches.
@pytest.mark.parametrize("kind", [Numbers, Epochs])
@pytest.mark.parametrize("stop", range(12))
def test_the_batches_after_a_resume_at_any_step_are_those_without_one(kind, stop):
    straight = read(stream_of(kind()), range(11))
    assert continued(kind, stop) == straight[stop:]
    if kind is Numbers:
        assert numbers(straight) == [*range(10)] * 4 + [*range(4)]
    else:
        passes = [numbers(straight)[at : at + 10] for at in (0, 10, 20)]
        assert [min(each) for each in passes] == [0, 100, 200]
        assert all(len(set(each)) == 10 for each in passes) and passes[1] != passes[0]


def test_the_batches_do_not_depend_on_workers_nor_on_a_change_of_their_number():
    straight = read(stream_of(Epochs()), range(11))
    assert read(stream_of(Epochs(), workers=1), range(11)) == straight
    assert continued(Epochs, 4, saved_workers=1, workers=0) == straight[4:]
    assert continued(Epochs, 7, saved_workers=0, workers=1) == straight[7:]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_state_counts_what_was_trained_on_and_not_what_was_read_ahead(workers):
    batches = stream_of(Numbers(100), workers=workers)
    batches.example()
    assert batches.positions()[0]["num_samples"] == 0
    steps = iter(batches.micro_batches(0))
    next(steps)
    assert places(batches) == [{"num_samples": 2, "num_passes": 0, "stream": {"at": 2}}]
    next(steps)
    assert places(batches) == [{"num_samples": 4, "num_passes": 0, "stream": {"at": 4}}]
    batches.close()


class Amortised(Numbers):
    """Numbers through a buffer that is drawn from by halves: near its beginning it is exact."""

    def __iter__(self):
        waiting = []
        for sample in super().__iter__():
            waiting.append(sample)
            if len(waiting) == 40:
                self.at -= 40  # the state is that of the chunk
                yield from waiting[:20]
                self.at += 40
                waiting = waiting[20:]


@pytest.mark.parametrize(("stream", "resumes_exactly"), [(Epochs, True), (Amortised, False)])
def test_a_resume_reads_the_last_batch_again_and_finds_other_samples(stream, resumes_exactly):
    saved = stream_of(stream(100))
    saved.example()
    read(saved, range(9))
    later = stream_of(stream(100))
    later.restore(saved.positions())
    assert later.resumes_exactly is resumes_exactly


def of_all_ranks(world_size, steps, positions=None, limit=3):
    """{step: the sorted samples of all ranks}, and the position of the first rank.

    Without the samples of idle rounds, which count on another rank.
    """
    samples_of_steps: dict[int, list[Any]] = {step: [] for step in steps}
    for rank in reversed(range(world_size)):
        size = {"micro_batch_size": limit, "global_batch_size": 12}
        batches = stream_of(Epochs(), rank, world_size, **size)
        batches.example()
        if positions is not None:
            batches.restore(positions)
            assert batches.resumes_exactly
        idle = batches.sizes.idle_rounds(rank)
        for step in steps:
            for number, part in enumerate(batches.micro_batches(step)):
                assert len(part["x"]) <= limit
                if number not in idle:
                    pairs = zip(part["x"].tolist(), part["noise"].tolist(), strict=True)
                    samples_of_steps[step] += pairs
    return {
        step: sorted(samples) for step, samples in samples_of_steps.items()
    }, batches.positions()


def test_a_shared_stream_gives_the_same_samples_to_each_step_at_any_number_of_ranks():
    expected, _ = of_all_ranks(1, range(6))
    assert all(len(samples) == 12 for samples in expected.values())
    for world_size, limit in [(2, 3), (3, 3), (4, 3), (5, 3), (7, 3), (5, 1), (11, 1)]:
        samples_of_steps, positions = of_all_ranks(world_size, range(2), limit=limit)
        assert samples_of_steps == {step: expected[step] for step in range(2)}
        assert positions[0]["num_samples"] == 24
        for other, more in ((1, 0), (2, 0), (5, 0), (world_size, 0), (world_size, 1)):
            samples_of_steps, _ = of_all_ranks(other, range(2, 6), positions, limit + more)
            assert samples_of_steps == {step: expected[step] for step in range(2, 6)}


def test_streams_of_their_own_continue_with_the_same_number_of_ranks_only(process_group):
    alone = stream_of(Numbers(), is_own=True)
    read(alone, range(5))
    (position,) = places(alone)
    assert position == {"num_samples": 20, "num_passes": 1, "stream": {"at": 10}}

    def of_second():
        return stream_of(Numbers(base=1000), 1, 2, is_own=True)

    straight = read(of_second(), range(11))
    assert numbers(straight) == [1000 + n % 10 for n in range(44)]
    later = of_second()
    later.restore([{"num_samples": -1, "num_passes": 0, "stream": {}}, position])
    assert read(later, range(5, 11)) == straight[5:]
    words = "has the positions of 3 streams, this start has 2 ranks: continue with 3 ranks, or have"
    with pytest.raises(UserError, match=words):
        later.restore([position] * 3)


def test_own_streams_of_two_ranks_draw_other_random_numbers_and_leave_those_of_the_rank():
    torch.manual_seed(1), random.seed(1)
    expected = torch.rand(1).item(), random.random()
    torch.manual_seed(1), random.seed(1)
    noise = [read(stream_of(Numbers(), rank, 2, is_own=True), range(2))[0][1] for rank in range(2)]
    assert not set(noise[0]) & set(noise[1])
    assert (torch.rand(1).item(), random.random()) == expected


@pytest.mark.parametrize("workers", [0, 1])
def test_an_empty_stream_is_a_user_error(workers):
    words = "^train.dataset mine:s: the stream has no samples"
    with pytest.raises(UserError, match=words):
        stream_of(Numbers(0), dataset="mine:s").example()
    batches = stream_of(Numbers(0), dataset="mine:s", workers=workers)
    with pytest.raises(UserError, match=words):
        next(batches.micro_batches(0))
    batches.close()


class Broken(Numbers):
    """The seventh sample cannot be read."""

    def __iter__(self):
        for sample in super().__iter__():
            if sample["x"] == self.base + 6:
                raise ValueError("a planted error")
            yield sample


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_a_stream_has_its_key_and_traceback(workers):
    batches = stream_of(Broken(), dataset="mine:s", workers=workers)
    assert len([*batches.micro_batches(0)]) == 2
    with pytest.raises(CodeError) as caught:
        read(batches, range(1, 2))
    batches.close()
    assert str(caught.value) == "train.dataset mine:s: ValueError: a planted error"
    assert 'raise ValueError("a planted error")' in caught.value.trace
    with pytest.raises(UserCodeError):  # in the first batch it is not retried
        stream_of(Broken(), micro_batch_size=7).example()


class Unsaved(Numbers):
    """Its state is more than plain values."""

    def state_dict(self):
        return {"at": self.at, "seen": {1, 2}}


def test_a_state_that_no_checkpoint_can_hold_is_refused_at_the_start():
    with pytest.raises(UserError, match=r"state_dict\(\) of the stream holds more than tensors, n"):
        stream_of(Unsaved(), dataset="mine:s").example()


@pytest.mark.filterwarnings("ignore:Got pickle error:UserWarning")  # torch warns, too
def test_a_loader_of_torch_that_has_begun_is_refused_in_a_worker():
    stream = Numbers()
    stream.iterator = iter(DataLoader(TensorDataset(torch.ones(2))))  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=r"launch.num_workers to 0 \(a DataLoader has workers of"):
        read(stream_of(stream, workers=1), range(1))


class Drawn(Numbers):
    """Draws the order of a pass when its iterator is made."""

    def __iter__(self):
        order = torch.randperm(self.num_samples).tolist()
        return ({**sample, "x": order[sample["x"]]} for sample in Numbers.__iter__(self))


def test_the_iterator_of_a_stream_is_made_with_seeded_generators():
    torch.manual_seed(1)
    first = read(stream_of(Drawn()), range(4))
    torch.manual_seed(2)
    assert read(stream_of(Drawn()), range(4)) == first


def test_streams_of_their_own_need_even_shares():
    words = "global_batch_size 9 cannot be shared evenly by 2 ranks, each of which has a stream of"
    with pytest.raises(UserError, match=words):
        stream_of(Numbers(), 1, 2, is_own=True, global_batch_size=9)


def test_a_stream_needs_a_number_of_steps():
    words = "^train.dataset mine:s returns a stream, whose length is not known: set train.max_steps"
    with pytest.raises(UserError, match=words):
        stream_of(Numbers(), dataset="mine:s", max_steps=None)


class Unsavable:
    """A stream without a state."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def dataset():
    return Unsavable(), None


def own_dataset(rank, world_size):
    return Numbers(base=1000 * rank), None


def created(name):
    return data_set.create(Train(dataset=f"{__name__}:{name}"), 1, 2)


def test_a_stream_without_a_state_begins_again_at_a_resume_and_is_not_exact():
    parts = created("dataset")
    batches = stream_of(parts.train)
    assert not batches.resumes_exactly
    [*batches.micro_batches(0)]
    later = stream_of(parts.train)
    later.restore(batches.positions())
    assert not later.resumes_exactly


def test_a_dataset_with_the_arguments_rank_and_world_size_gives_each_rank_its_own_stream():
    parts = created("dataset")
    assert data_set.is_stream(parts.train) and not parts.is_of_rank
    parts = created("own_dataset")
    assert isinstance(parts.train, Numbers) and parts.is_of_rank and parts.train.base == 1000
