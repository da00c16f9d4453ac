"""The examples in configs/ name arguments that their data set, transform and model have."""

import inspect
from pathlib import Path

import pytest
import torch

from slurm_job_kit.jobs.config.load import load
from slurm_job_kit.jobs.contract.spec import DATASETS, MODELS, OBJECTIVES, SCHEDULES, TRANSFORMS
from slurm_job_kit.trainer.data import data_set
from slurm_job_kit.trainer.data.to_device import create_transform
from slurm_job_kit.trainer.model import models, objectives, optim
from slurm_job_kit.trainer.model.objectives import DataFacts
from slurm_job_kit.trainer.parts import parts
from slurm_job_kit.trainer.plugins.zoo import image_files

CONFIGS = Path(__file__).resolve().parents[3] / "configs"


@pytest.mark.parametrize(
    ("name", "dataset", "num_classes", "size"),
    [("cifar10", image_files.cifar10, 10, 32), ("imagenet", image_files.image_folder, 1000, 224)],
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


def test_the_spec_and_the_trainer_have_the_same_built_in_names():
    names = {"model": MODELS, "dataset": DATASETS, "transform": TRANSFORMS, "objective": OBJECTIVES}
    core = {"model": models, "dataset": data_set, "objective": objectives}
    found = {key: (*getattr(core.get(key), "BUILT_IN", ()), *parts(key)) for key in names}
    assert found == names
    assert (*optim.BUILT_IN_SCHEDULES, *parts("schedule")) == SCHEDULES
