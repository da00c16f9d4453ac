"""The examples in configs/ name arguments that their data set, transform and model have."""

import dataclasses
import inspect
from pathlib import Path

import pytest
import torch

from slurm_job_kit.jobs.config.load import load
from slurm_job_kit.jobs.spec import DATASETS, MODELS, OBJECTIVES, SCHEDULES, TRANSFORMS
from slurm_job_kit.trainer import hooks
from slurm_job_kit.trainer.data import data_set
from slurm_job_kit.trainer.data.sample_rng import SampleRandom
from slurm_job_kit.trainer.data.sources import BatchSource, Samples
from slurm_job_kit.trainer.data.to_device import create_transform
from slurm_job_kit.trainer.model import models, objectives, optim
from slurm_job_kit.trainer.model.objectives import DataFacts
from slurm_job_kit.trainer.rooms.samples.collate import Collate
from slurm_job_kit.trainer.rooms.zoo import image_files

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
    transform = create_transform(train)
    assert transform is not None
    moved = transform(images, None)
    with torch.device("meta"):
        model = models.create(DataFacts(train, num_classes), images)
        assert model(moved.to("meta")).shape == (2, num_classes)


def test_the_example_of_own_parts_fits_together():
    train = load(CONFIGS / "own_parts.yaml").spec.train
    samples, held_out, _ = data_set.create(train, 0, 1)
    assert isinstance(samples, Samples) and isinstance(held_out, Samples)
    inputs, labels = samples.batch(torch.arange(8))
    transform = create_transform(train)
    assert transform is not None
    random = SampleRandom(0, 1, torch.arange(8))
    moved = transform(inputs, random)
    assert moved.shape == inputs.shape and not torch.equal(moved, inputs)
    assert torch.equal(transform(inputs, None), inputs)
    model = models.create(DataFacts(train, samples.num_classes), inputs)
    assert model(moved).shape == (8, held_out.num_classes)


def test_the_spec_and_the_trainer_have_the_same_built_in_names():
    names = {"model": MODELS, "dataset": DATASETS, "transform": TRANSFORMS, "objective": OBJECTIVES}
    assert {key: tuple(hooks.parts(key)) for key in names} == names
    assert tuple(optim.BUILT_IN_SCHEDULES) == SCHEDULES


def test_labels_are_smoothed_in_classification_only(refuse):
    text = "train: {objective: regression, label_smoothing: 0.1}"
    assert "is for train.objective classi" in refuse(f"{text}\n")


@pytest.mark.parametrize("name", ["own_objective", "own_stream", "regression", "gpt"])
def test_an_example_of_other_work_is_computed_by_its_objective(name):
    train = load(CONFIGS / f"{name}.yaml").spec.train
    if name == "gpt":
        args = {**train.dataset_args, "max_bytes": 200_000}
        train = dataclasses.replace(train, dataset_args=args)
    part = data_set.create(train, 0, 1).held_out
    assert part is not None
    if isinstance(part, BatchSource):
        batch = part.batch(torch.arange(3))
    else:
        batch = Collate(train.collate)([part[index] for index in range(3)], range(3))
    facts = DataFacts(train, 1, vocab_size=getattr(part, "vocab_size", None))
    model, objective = models.create(facts, batch), objectives.create(facts)
    sums = objective(model, batch)
    objectives.check_sums(sums, train.objective)
    assert torch.isfinite(sums.loss)
