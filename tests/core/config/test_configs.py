"""The examples in configs/ name arguments that their data set, transform and model have."""

import inspect
from pathlib import Path

import pytest
import torch

from slurm_job_kit.jobs.config.load import load
from slurm_job_kit.jobs.spec import DATASETS, MODELS, OBJECTIVES, SCHEDULES, TRANSFORMS
from slurm_job_kit.trainer.data import builtin, image_files, transforms
from slurm_job_kit.trainer.data.collate import Collate
from slurm_job_kit.trainer.data.sample_rng import SampleRandom
from slurm_job_kit.trainer.data.sources import BatchSource, Samples
from slurm_job_kit.trainer.errors import UserError
from slurm_job_kit.trainer.model import models, objectives, optim
from slurm_job_kit.trainer.model.models import Fit
from slurm_job_kit.trainer.model.objectives import DataFacts

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
        fit = Fit(images, num_classes, None, train.dataset)
        model = models.create(train.model, train.model_args, fit)
        assert model(moved.to("meta")).shape == (2, num_classes)


def test_the_example_of_own_parts_fits_together():
    train = load(CONFIGS / "own_parts.yaml").spec.train
    samples, held_out, _ = builtin.create(train.dataset, train.dataset_args, 0, 1)
    assert isinstance(samples, Samples) and isinstance(held_out, Samples)
    inputs, labels = samples.batch(torch.arange(8))
    transform = transforms.create(train.transform, train.transform_args)
    assert transform is not None
    random = SampleRandom(0, 1, torch.arange(8))
    moved = transform(inputs, random)
    assert moved.shape == inputs.shape and not torch.equal(moved, inputs)
    assert torch.equal(transform(inputs, None), inputs)
    fit = Fit(inputs, samples.num_classes, None, train.dataset)
    model = models.create(train.model, train.model_args, fit)
    assert model(moved).shape == (8, held_out.num_classes)


def test_the_spec_and_the_trainer_have_the_same_built_in_names():
    fit, data = Fit(torch.zeros(2, 3, 8, 8), 2, None, "none"), DataFacts("none")
    for names, create in [
        (MODELS, lambda: models.create("unknown", {}, fit)),
        (DATASETS, lambda: builtin.create("unknown", {}, 0, 1)),
        (TRANSFORMS, lambda: transforms.create("unknown", {})),
        (OBJECTIVES, lambda: objectives.create("unknown", {}, 0.0, data)),
    ]:
        with pytest.raises(UserError, match=f"neither one of {', '.join(names)} nor"):
            create()
    assert tuple(optim.BUILT_IN_SCHEDULES) == SCHEDULES


@pytest.mark.parametrize("name", ["own_objective", "own_stream", "regression", "gpt"])
def test_an_example_of_other_work_is_computed_by_its_objective(name):
    train = load(CONFIGS / f"{name}.yaml").spec.train
    args = {**train.dataset_args, **({"max_bytes": 200_000} if name == "gpt" else {})}
    part = builtin.create(train.dataset, args, 0, 1).held_out
    assert part is not None
    if isinstance(part, BatchSource):
        batch = part.batch(torch.arange(3))
    else:
        batch = Collate(train.collate)([part[index] for index in range(3)], range(3))
    inputs = batch[0] if train.objective == "regression" else batch[:, :-1] if name == "gpt" else 0
    fit = Fit(inputs, 1, getattr(part, "vocab_size", None), train.dataset)
    model = models.create(train.model, train.model_args, fit)
    objective = objectives.create(train.objective, train.objective_args, 0.0, DataFacts(name))
    sums = objective(model, batch)
    objectives.check_sums(sums, train.objective)
    assert torch.isfinite(sums.loss)
