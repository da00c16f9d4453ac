"""Random numbers of the augmentation follow from (seed, step, sample), not from the batch."""

import torch

from slurm_job_kit.trainer.data.sources import Samples
from slurm_job_kit.trainer.seeds import SampleRandom
from tests.core.data_kit import feed_of, pixels_by_sample
from tests.parts import Noise


def test_numbers_of_a_sample_do_not_depend_on_its_batch():
    indices = torch.randperm(1000)
    whole = SampleRandom(1, 7, indices).uniform(5)
    for size in (1, 3, 400):
        parts = [SampleRandom(1, 7, part).uniform(5) for part in indices[:800].split(size)]
        assert torch.equal(torch.cat(parts), whole[:800])
    pieces = SampleRandom(1, 7, indices)
    assert torch.equal(torch.cat([pieces.uniform(2), pieces.uniform(3)], dim=1), whole)


def test_numbers_are_uniform_and_differ_by_seed_step_sample_and_counter():
    indices = torch.arange(2000)
    numbers = [
        SampleRandom(seed, step, indices).uniform(10) for seed, step in ((0, 0), (0, 1), (1, 0))
    ]
    together = torch.stack(numbers).double()
    assert together.min() >= 0 and together.max() < 1
    counts = torch.histc(together.float(), bins=20, min=0, max=1)
    assert ((counts - 3000).abs() < 6 * 3000**0.5).all()
    correlations = torch.corrcoef(together.permute(0, 2, 1).reshape(30, 2000))
    assert (correlations - torch.eye(30)).abs().max() < 0.15
    assert together.unique().numel() > 0.99 * together.numel()


def test_these_numbers_never_change():
    """A resume on a newer version of the kit must see the same pixels."""
    numbers = SampleRandom(3, 5, torch.tensor([0, 2**40])).uniform(2)
    # Computed with unsigned 64-bit arithmetic in plain Python.
    assert (numbers * 2**24).long().tolist() == [[10030538, 8970312], [189203, 2088303]]


def numbered(num_samples):
    """Images whose pixels are all different, the first one being the sample's number."""
    images = torch.arange(num_samples)[:, None, None, None] + torch.rand(num_samples, 2, 6, 6) / 4
    return Samples(images, torch.zeros(num_samples, dtype=torch.int64))


def keep_number(transform):
    """The transform on all pixels, with the sample's number back in the first one."""

    def apply(images, random):
        moved = transform(images, random).clone()
        moved[:, 0, 0, 0] = images[:, 0, 0, 0].floor()
        return moved

    return apply


AUGMENT = keep_number(Noise())


def test_augmentation_is_the_same_however_the_global_batch_is_cut_and_resumed():
    source = numbered(50)
    elastic = {"global_batch_size": 12, "epochs": 3}
    one = pixels_by_sample(feed_of(source, AUGMENT, micro_batch_size=12, **elastic), range(9))
    assert len(one) == 9 * 12
    for world_size, micro_batch_size in ((1, 5), (2, 6), (3, 1), (4, 3)):
        size = {"world_size": world_size, "micro_batch_size": micro_batch_size, **elastic}
        for first in (0, 5):
            pixels: dict[tuple[int, int], torch.Tensor] = {}
            for rank in range(world_size):
                feed = feed_of(source, AUGMENT, rank=rank, **size)
                pixels |= pixels_by_sample(feed, range(first, 9))
            assert pixels.keys() == {key for key in one if key[0] >= first}
            assert all(torch.equal(pixels[key], one[key]) for key in pixels)
