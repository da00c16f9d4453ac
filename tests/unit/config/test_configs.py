"""The examples in configs/ name arguments that their data set, transform and model have."""

import inspect
from pathlib import Path

import pytest
import torch

from jobs.config.load import load
from jobs.spec import DATASETS, MODELS, TRANSFORMS
from trainer.data import builtin, image_files, transforms
from trainer.data.sample_rng import SampleRandom
from trainer.data.sources import BatchSource
from trainer.errors import UserError
from trainer.model import models

CONFIGS = Path(__file__).resolve().parents[3] / "configs"


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
    transform = transforms.create(train.transform, train.transform_args)
    assert transform is not None
    moved = transform(images, None)
    with torch.device("meta"):
        model = models.create(train.model, train.model_args, images, num_classes)
        assert model(moved.to("meta")).shape == (2, num_classes)


def test_the_example_of_own_parts_fits_together():
    train = load(CONFIGS / "own_parts.yaml").spec.train
    samples, held_out = builtin.create(train.dataset, train.dataset_args)
    assert isinstance(samples, BatchSource)
    inputs, labels = samples.batch(torch.arange(8))
    transform = transforms.create(train.transform, train.transform_args)
    assert transform is not None
    random = SampleRandom(0, 1, torch.arange(8))
    moved = transform(inputs, random)
    assert moved.shape == inputs.shape and not torch.equal(moved, inputs)
    assert torch.equal(transform(inputs, None), inputs)
    model = models.create(train.model, train.model_args, inputs, samples.num_classes)
    assert model(moved).shape == (8, held_out.num_classes)


def test_the_spec_and_the_trainer_have_the_same_built_in_names():
    images = torch.zeros(2, 3, 8, 8)
    for names, create in [
        (MODELS, lambda: models.create("unknown", {}, images, 2)),
        (DATASETS, lambda: builtin.create("unknown", {})),
        (TRANSFORMS, lambda: transforms.create("unknown", {})),
    ]:
        with pytest.raises(UserError, match=f"neither one of {', '.join(names)} nor"):
            create()
