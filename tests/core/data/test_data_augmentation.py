"""Random numbers of the augmentation follow from (seed, step, sample), not from the batch."""

from typing import Any

import pytest
import torch

from slurm_job_kit.trainer.data import transforms
from slurm_job_kit.trainer.data.sample_rng import SampleRandom
from slurm_job_kit.trainer.data.sources import Samples
from slurm_job_kit.trainer.errors import UserError
from tests.core.data_kit import feed_of, pixels_by_sample


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


AUGMENT = keep_number(transforms.create("image", {"crop_padding": 2, "flip": True}))


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


def test_augmentation_differs_by_step_and_seed():
    source = numbered(12)
    size = {"global_batch_size": 12, "epochs": 3}
    a = pixels_by_sample(feed_of(source, AUGMENT, **size), range(3))
    b = pixels_by_sample(feed_of(source, AUGMENT, seed=1, **size), range(3))
    assert sum(not torch.equal(a[0, sample], a[1, sample]) for sample in range(12)) > 8
    assert sum(not torch.equal(a[0, sample], b[0, sample]) for sample in range(12)) > 8


def image(args: dict[str, Any]) -> transforms.Transform:
    transform = transforms.create("image", args)
    assert transform is not None
    return transform


class Fixed(SampleRandom):
    """Random numbers that are given."""

    def __init__(self, *rows):
        self.rows = torch.tensor(rows)

    def uniform(self, k):
        return self.rows[:, :k]


def test_the_crop_moves_over_zeros_and_the_flip_mirrors():
    images = torch.arange(1.0, 10).reshape(1, 1, 3, 3).repeat(4, 1, 1, 1)
    transform = image({"crop_padding": 1, "flip": True})
    rows = ([0.0, 0.0, 0.9], [0.5, 0.5, 0.9], [0.99, 0.99, 0.9], [0.5, 0.99, 0.1])
    rows_of_pixels = transform(images, Fixed(*rows))[:, 0].tolist()
    assert rows_of_pixels[0] == [[0, 0, 0], [0, 1, 2], [0, 4, 5]]
    assert rows_of_pixels[1] == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert rows_of_pixels[2] == [[5, 6, 0], [8, 9, 0], [0, 0, 0]]
    assert rows_of_pixels[3] == [[0, 3, 2], [0, 6, 5], [0, 9, 8]]


def test_evaluation_is_normalised_only():
    images = torch.rand(5, 2, 4, 4)
    args = {"crop_padding": 2, "flip": True, "mean": [0.5, 0.25], "std": [0.5, 2.0]}
    normalised = image(args)(images, None)
    mean, std = torch.tensor([0.5, 0.25]), torch.tensor([0.5, 2.0])
    assert torch.allclose(
        normalised, (images - mean[:, None, None]) / std[:, None, None], atol=1e-6
    )
    assert torch.equal(image({"flip": True})(images, None), images)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"crop_padding": -1}, "crop_padding must be 0 or more, not -1"),
        ({"mean": [0.5], "std": [1.0, 1.0]}, "mean has 1 numbers, but std has 2"),
        ({"std": [1.0, 0.0]}, r"std must be above 0, not \[1.0, 0.0\]"),
        ({"rotate": 3}, "unexpected keyword argument 'rotate'"),
    ],
)
def test_invalid_arguments_of_image_are_refused(args, words):
    with pytest.raises(UserError, match=f"train.transform_args: .*{words}"):
        transforms.create("image", args)


def test_a_transform_that_does_not_fit_the_data_is_refused_before_the_first_step():
    table = Samples(torch.zeros(9, 30), torch.zeros(9, dtype=torch.int64))
    size = {"micro_batch_size": 3}
    with pytest.raises(UserError, match=r"train.transform is image, but .* shape \(30,\)"):
        feed_of(table, transforms.create("image", {}), **size).example()
    three = transforms.create("image", {"mean": [0.5] * 3})
    with pytest.raises(UserError, match=r"have 3 numbers, but the images .* have 2 channels"):
        feed_of(numbered(9), three, **size).example()
