"""The data sets of the core: tables that scikit-learn ships. Nothing is downloaded."""

import importlib.util
from pathlib import Path

import numpy as np
import torch

from ..contract import packages
from .sources import Samples

TRAIN_FRACTION = 0.8


def digits() -> tuple[Samples, Samples]:
    """Return 1,797 handwritten digits, (train, test). images: uint8 [N, 1, 8, 8], from 0 to 16."""
    table = read_table("digits.csv.gz", header_lines=0)
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
    table = read_table("breast_cancer.csv", header_lines=1)
    values, labels = table[:, :-1], table[:, -1].long()
    train, test = stratified_split(labels)
    deviation, mean = torch.std_mean(values[train], dim=0)
    values = ((values - mean) / deviation).float()
    return Samples(values[train], labels[train]), Samples(values[test], labels[test])


def read_table(file_name: str, header_lines: int) -> torch.Tensor:
    """Read a table that scikit-learn ships: float64 [N, columns]; a label in the last column.

    The import of scikit-learn takes 1 to 2.5 s, the file of 57 KB only 20 ms. So the package is
    located, but not imported. Source of the paths: sklearn/datasets/_base.py (1.9.1).
    """
    if missing := packages.missing(["scikit-learn"], "train.dataset"):
        raise missing
    package = importlib.util.find_spec("sklearn")
    assert package is not None and package.submodule_search_locations is not None
    path = Path(package.submodule_search_locations[0]) / "datasets" / "data" / file_name
    return torch.from_numpy(np.loadtxt(path, delimiter=",", skiprows=header_lines))


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
