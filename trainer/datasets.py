"""The built-in data sets, both part of scikit-learn: nothing is ever downloaded."""

from __future__ import annotations

from typing import Any

import torch

from trainer.data import Samples
from trainer.plugins import call

TRAIN_FRACTION = 0.8


def create(name: str, args: dict[str, Any]) -> tuple[Samples, Samples]:
    """The (train, test) samples of `train.dataset`: a built-in, or `package.module:callable`."""
    built_in = {"digits": digits, "breast_cancer": breast_cancer}
    train, test = call("train.dataset", name, built_in, args)
    return train, test


def digits() -> tuple[Samples, Samples]:
    """1,797 handwritten digits, uint8 [N, 1, 8, 8] with values to 16."""
    from sklearn.datasets import load_digits

    table = load_digits()
    images = torch.from_numpy(table.images).to(torch.uint8).unsqueeze(1)
    labels = torch.from_numpy(table.target).long()
    train, test = stratified_split(labels)
    return (
        Samples(images[train], labels[train], scale=1 / 16),
        Samples(images[test], labels[test], scale=1 / 16),
    )


def breast_cancer() -> tuple[Samples, Samples]:
    """569 patients with 30 measurements, standardised by the training set's mean and deviation."""
    from sklearn.datasets import load_breast_cancer

    table = load_breast_cancer()
    values = torch.from_numpy(table.data)
    labels = torch.from_numpy(table.target).long()
    train, test = stratified_split(labels)
    deviation, mean = torch.std_mean(values[train], dim=0)
    values = ((values - mean) / deviation).float()
    return Samples(values[train], labels[train]), Samples(values[test], labels[test])


def stratified_split(labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices of the training and the test samples: 80 % of each class, the same in every run."""
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
