"""The built-in data sets that need no files of the user. Nothing is downloaded."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...data.sample_rng import SampleRandom
from ...data.sources import Batch, Samples
from ...errors import UserError
from .image_files import cifar10, image_folder
from .tokens import python_source, text, tokens

TRAIN_FRACTION = 0.8


def digits() -> tuple[Samples, Samples]:
    """Return 1,797 handwritten digits, (train, test). images: uint8 [N, 1, 8, 8], from 0 to 16."""
    table = _read_table("digits.csv.gz", header_lines=0)
    images = table[:, :-1].to(torch.uint8).reshape(-1, 1, 8, 8)
    labels = table[:, -1].long()
    train, test = stratified_split(labels)
    return (
        Samples(images[train], labels[train], scale=1 / 16),
        Samples(images[test], labels[test], scale=1 / 16),
    )


def breast_cancer() -> tuple[Samples, Samples]:
    """Return 30 measurements of 569 patients, (train, test). values: float32 [N, 30].

    Standardised by the mean and standard deviation of the training part.
    """
    table = _read_table("breast_cancer.csv", header_lines=1)
    values, labels = table[:, :-1], table[:, -1].long()
    train, test = stratified_split(labels)
    values = _standardised(values, train).float()
    return Samples(values[train], labels[train]), Samples(values[test], labels[test])


def diabetes() -> tuple[Samples, Samples]:
    """Return 10 measurements of 442 patients, (train, test), and how far the disease got in a year.

    values: float32 [N, 10]. labels: float32 [N]. Both standardised by the training part.
    """
    data = _read_table("diabetes_data_raw.csv.gz", header_lines=0, delimiter=None)
    targets = _read_table("diabetes_target.csv.gz", header_lines=0, delimiter=None).flatten()
    train, test = stratified_split(torch.zeros(len(targets), dtype=torch.int64))
    values, targets = (_standardised(each, train).float() for each in (data, targets))
    return Samples(values[train], targets[train]), Samples(values[test], targets[test])


def _standardised(values: torch.Tensor, train: torch.Tensor) -> torch.Tensor:
    deviation, mean = torch.std_mean(values[train], dim=0)
    return (values - mean) / deviation


def _read_table(file_name: str, header_lines: int, delimiter: str | None = ",") -> torch.Tensor:
    """Read a table that scikit-learn ships: float64 [N, columns]; a label in the last column.

    The import of scikit-learn takes 1 to 2.5 s, the file of 57 KB only 20 ms. So the package is
    located, but not imported. Source of the paths: sklearn/datasets/_base.py (1.9.1).
    """
    package = importlib.util.find_spec("sklearn")
    install = f"{sys.executable} -m pip install scikit-learn"
    if package is None or not package.submodule_search_locations:
        raise UserError(
            f"train.dataset needs the package scikit-learn, which ships {file_name}\n"
            f"  hint: {install}"
        )
    path = Path(package.submodule_search_locations[0]) / "datasets" / "data" / file_name
    try:
        return torch.from_numpy(np.loadtxt(path, delimiter=delimiter, skiprows=header_lines))
    except FileNotFoundError as error:
        raise UserError(
            f"train.dataset: scikit-learn is installed without the file {path}\n"
            f"  hint: {install} --force-reinstall --no-deps"
        ) from error


@dataclass(frozen=True)
class SyntheticImages:
    """Images float32 [n, channels, size, size] from 0 to 1, computed from their index.

    Noise whose brightness depends on the class, so that a model can learn it. They need no memory
    and little time: each image is the sum of a row and a column of random numbers.
    """

    num_samples: int
    size: int
    channels: int
    num_classes: int
    part: int
    device: torch.device = torch.device("cpu")

    def __len__(self) -> int:
        return self.num_samples

    def to(self, device: torch.device) -> SyntheticImages:
        """Return the same images, computed on a device."""
        return replace(self, device=device)

    def batch(self, indices: torch.Tensor) -> Batch:
        """Return (images float32 [n, C, H, W], labels int64 [n]) of `indices`, int64 [n]."""
        random = SampleRandom(0, self.part, indices)
        shape = len(indices), self.channels, self.size
        rows = random.uniform(self.channels * self.size).reshape(shape).unsqueeze(3)
        columns = random.uniform(self.channels * self.size).reshape(shape).unsqueeze(2)
        labels = indices % self.num_classes
        noise = (rows + columns).frac_().mul_(0.5)
        return noise.add_((labels * (0.5 / self.num_classes)).reshape(-1, 1, 1, 1)), labels


def synthetic_images(
    num_train: int, num_test: int, size: int = 32, channels: int = 3, num_classes: int = 10
) -> tuple[SyntheticImages, SyntheticImages]:
    """Return (train, test) with these numbers of images, for trials and measurements.

    size: height and width in pixels. Raises UserError for numbers below 1.
    """
    numbers = {"num_train": num_train, "num_test": num_test, "size": size}
    numbers |= {"channels": channels, "num_classes": num_classes}
    for name, number in numbers.items():
        if not isinstance(number, int) or number < 1:
            raise UserError(f"train.dataset_args.{name} must be a whole number from 1 on: {number}")
    return (
        SyntheticImages(num_train, size, channels, num_classes, part=0),
        SyntheticImages(num_test, size, channels, num_classes, part=1),
    )


def stratified_split(labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sorted indices (train, test), int64: TRAIN_FRACTION of each class for training.

    labels: int64 [N]. The split is the same in every run. Where shares are not whole, the classes
    with the largest remainders get one training sample more.
    """
    generator = torch.Generator().manual_seed(0)
    sizes = torch.bincount(labels)
    shares = sizes * TRAIN_FRACTION
    counts = shares.long()
    missing = int(len(labels) * TRAIN_FRACTION) - int(counts.sum())
    counts[(shares - counts).argsort(descending=True, stable=True)[:missing]] += 1
    train, test = [], []
    for label, count in enumerate(counts.tolist()):
        members = (labels == label).nonzero().flatten()
        members = members[torch.randperm(len(members), generator=generator)]
        train.append(members[:count])
        test.append(members[count:])
    return torch.cat(train).sort().values, torch.cat(test).sort().values


BUILT_IN: dict[str, Callable[..., Any]] = {
    "digits": digits,
    "breast_cancer": breast_cancer,
    "synthetic_images": synthetic_images,
    "cifar10": cifar10,
    "image_folder": image_folder,
    "diabetes": diabetes,
    "python_source": python_source,
    "text": text,
    "tokens": tokens,
}
