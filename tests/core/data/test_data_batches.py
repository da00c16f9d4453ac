"""The samples of each step, rank and micro batch."""

import pytest
import torch

from slurm_job_kit.jobs.contract.spec import Train
from slurm_job_kit.trainer.data.batches import Batches
from slurm_job_kit.trainer.errors import UserError
from slurm_job_kit.trainer.seeds import ORDER, mix


def steps_of(batches, epoch):
    """The samples of each step of an epoch: in order of micro batches, then ranks.

    Without those of idle rounds, which count on another rank.
    """
    order = batches.order(epoch)
    first = epoch * batches.steps_per_epoch
    for step in range(first, first + batches.steps_per_epoch):
        ranks = [batches.micro_batches(order, step, rank) for rank in range(batches.world_size)]
        assert {len(parts) for parts in ranks} == {batches.num_micro_batches(step)}
        for rank, parts in enumerate(ranks):
            idle = batches.idle_rounds(rank)
            assert all(len(part) > 0 for part in parts)
            parts[:] = [part[: 0 if at in idle else None] for at, part in enumerate(parts)]
        rounds = zip(*ranks, strict=True)
        yield [sample for parts in rounds for part in parts for sample in part.tolist()]


def batches_of(num_samples, world_size, **train):
    return Batches.of(Train(**train), num_samples, world_size)


def test_the_order_takes_four_bytes_a_sample_and_is_that_of_int64():
    batches = batches_of(5003, 1, micro_batch_size=8)
    generator = torch.Generator().manual_seed(mix(ORDER, 0, 2))
    order = batches.order(2)
    assert order.tolist() == torch.randperm(5003, generator=generator).tolist()
    assert order.element_size() == 4
    assert batches.micro_batches(order, 2 * batches.steps_per_epoch, 0)[0].dtype == torch.int64


def test_the_order_is_a_pure_function_of_seed_and_epoch():
    batches = batches_of(455, 2, micro_batch_size=8)
    torch.manual_seed(1)
    first = batches.order(5)
    torch.manual_seed(2)
    assert torch.equal(batches.order(5), first)
    assert not torch.equal(batches.order(6), first)
    assert not torch.equal(batches_of(455, 2, micro_batch_size=8, seed=1).order(5), first)


def test_the_last_step_of_an_epoch_takes_the_rounds_that_are_left():
    batches = batches_of(100, 2, micro_batch_size=7, grad_accum_steps=3)
    assert (batches.steps_per_epoch, batches.global_batch_size) == (3, 42)
    assert [batches.num_micro_batches(step) for step in range(6)] == [3, 3, 1, 3, 3, 1]
    steps = list(steps_of(batches, 1))
    assert [len(step) for step in steps] == [42, 42, 14]
    assert sum(steps, []) == batches.order(1)[:98].tolist()


@pytest.mark.parametrize(
    ("size", "limit", "ranks", "rounds", "micro"),
    [
        (1104, 16, 56, 2, "9 or 10"),
        (1104, 16, 48, 2, "11 or 12"),  # even: 23 rounds of 1
        (72, 16, 4, 2, "9"),
        (96, 20, 2, 3, "16"),
    ],
)
def test_even_shares_are_taken_where_they_need_few_rounds(size, limit, ranks, rounds, micro):
    batches = batches_of(2000, ranks, global_batch_size=size, micro_batch_size=limit)
    assert (batches.grad_accum_steps, batches.micro_batch_sizes) == (rounds, micro)


def test_synchronised_statistics_exclude_a_rank_without_a_sample():
    sizes = {"global_batch_size": 7, "micro_batch_size": 1}
    assert batches_of(100, 3, **sizes).grad_accum_steps == 3
    with pytest.raises(
        UserError, match="sync_batchnorm: 3 ranks cannot share .* raise train.micro"
    ):
        batches_of(100, 3, **sizes, sync_batchnorm=True)
    batches_of(100, 7, **sizes, sync_batchnorm=True)


@pytest.mark.parametrize("limit", [1, 2, 5, 12, 100])
def test_an_elastic_sequence_of_global_batches_is_the_same_at_any_world_size(limit):
    def of(world_size):
        return batches_of(131, world_size, global_batch_size=12, micro_batch_size=limit)

    one = of(1)
    assert one.samples_per_epoch == 120
    for world_size in range(1, 13):
        batches = of(world_size)
        assert batches.micro_batch_size <= limit
        assert batches.global_batch_size == 12 and batches.steps_per_epoch == 10
        for epoch in (0, 2):
            assert list(map(sorted, steps_of(batches, epoch))) == list(
                map(sorted, steps_of(one, epoch))
            )


@pytest.mark.parametrize(
    ("world_size", "limit", "num_rounds", "sizes"),
    [(7, 32, 2, {18, 19}), (7, 5, 8, {4, 5}), (100, 32, 1, {2, 3}), (7, 1, 37, {0, 1})],
)
def test_an_uneven_share_has_the_fewest_rounds_and_two_sizes(world_size, limit, num_rounds, sizes):
    batches = batches_of(300, world_size, global_batch_size=256, micro_batch_size=limit)
    assert batches.grad_accum_steps == num_rounds and not batches.is_even
    seen = set()
    for rank in range(world_size):
        idle = batches.idle_rounds(rank)
        parts = batches.micro_batches(batches.order(0), 0, rank)
        seen |= {0 if at in idle else len(part) for at, part in enumerate(parts)}
    assert seen == sizes and max(sizes) == batches.micro_batch_size


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ({"micro_batch_size": 300}, r"micro_batch_size 300 x 2 ranks .* 600, but .* only 455"),
        (
            {"micro_batch_size": 50, "grad_accum_steps": 5},
            r"grad_accum_steps is 5, but the 455 .* make only 4 batches of .* 50 x 2 ranks",
        ),
        ({"global_batch_size": 456}, "is 456, but .* only 455 samples: make it 455 at most"),
        ({"global_batch_size": 1}, "1 is less than one sample for each of 2 ranks: write 2 at"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_with_both_numbers_and_a_fix(train, words):
    with pytest.raises(UserError, match=words):
        batches_of(455, 2, **train)
