"""The examples in configs/ name arguments that their data set, transform and model have."""

import inspect
from pathlib import Path

import pytest
import torch

from jobs.load import load
from trainer import image_files, models, transforms

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


@pytest.mark.parametrize(
    ("name", "dataset", "num_classes", "size"),
    [
        ("cifar10", image_files.cifar10, 10, 32),
        ("imagenet", image_files.image_folder, 1000, 224),
    ],
)
def test_an_example_on_ones_own_images_fits_its_parts(name, dataset, num_classes, size):
    train = load(CONFIGS / f"{name}.yaml").spec.train
    inspect.signature(dataset).bind(**train.dataset_args)
    images = torch.zeros(2, 3, size, size)
    moved = transforms.create(train.transform, train.transform_args)(images, None)
    with torch.device("meta"):
        model = models.create(train.model, train.model_args, images, num_classes)
        assert model(moved.to("meta")).shape == (2, num_classes)
