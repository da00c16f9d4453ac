"""The data sets of this plugin. Nothing is downloaded."""

from collections.abc import Callable
from typing import Any

import torch

from ...data.sources import Samples
from ...data.tables import read_table, standardised, stratified_split
from .image_files import cifar10, image_folder
from .tokens import python_source, tokens


def diabetes() -> tuple[Samples, Samples]:
    """Return 10 measurements of 442 patients, (train, test), and how far the disease got in a year.

    values: float32 [N, 10]. labels: float32 [N]. Both standardised by the training part.
    """
    data = read_table("diabetes_data_raw.csv.gz", header_lines=0, delimiter=None)
    targets = read_table("diabetes_target.csv.gz", header_lines=0, delimiter=None).flatten()
    train, test = stratified_split(torch.zeros(len(targets), dtype=torch.int64))
    values, targets = (standardised(each, train).float() for each in (data, targets))
    return Samples(values[train], targets[train]), Samples(values[test], targets[test])


BUILT_IN: dict[str, Callable[..., Any]] = {
    "cifar10": cifar10,
    "image_folder": image_folder,
    "diabetes": diabetes,
    "python_source": python_source,
    "tokens": tokens,
}
