"""The built-in transform of images."""

from typing import Any

import pytest
import torch

from slurm_job_kit.jobs.contract.spec import Train
from slurm_job_kit.trainer.data.sources import Samples
from slurm_job_kit.trainer.data.to_device import Transform, create_transform
from slurm_job_kit.trainer.errors import UserError
from slurm_job_kit.trainer.seeds import SampleRandom
from tests.core.data.test_data_augmentation import numbered
from tests.core.data_kit import feed_of


def image(args: dict[str, Any]) -> Transform:
    transform = create_transform(Train(transform="image", transform_args=args))
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
        ({"mean": [0.5], "std": [1.0, 1.0]}, "mean has 1 numbers, but std has 2"),
        ({"rotate": 3}, "unexpected keyword argument 'rotate'"),
    ],
)
def test_invalid_arguments_of_image_are_refused(args, words):
    with pytest.raises(UserError, match=f"train.transform_args: .*{words}"):
        create_transform(Train(transform="image", transform_args=args))


def test_a_transform_that_does_not_fit_the_data_is_refused_before_the_first_step():
    table = Samples(torch.zeros(9, 30), torch.zeros(9, dtype=torch.int64))
    size = {"micro_batch_size": 3}
    with pytest.raises(UserError, match=r"train.transform is image, but .* shape \(30,\)"):
        feed_of(table, image({}), **size).example()
    three = image({"mean": [0.5] * 3, "std": [1.0] * 3})
    with pytest.raises(UserError, match=r"have 3 numbers, but the images .* have 2 channels"):
        feed_of(numbered(9), three, **size).example()
