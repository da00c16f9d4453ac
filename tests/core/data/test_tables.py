"""The tables of scikit-learn: the data sets of the core."""

import sys
from typing import Any

import pytest
import torch

from slurm_job_kit.trainer.data import tables
from slurm_job_kit.trainer.errors import UserError


def sklearn_table(name: str, **options: Any) -> Any:
    """A table of scikit-learn. Imported here: each pytest process imports this file to collect."""
    from sklearn import datasets

    return getattr(datasets, f"load_{name}")(**options)


def test_the_two_parts_of_a_split_share_no_sample_and_have_the_same_share_of_each_class():
    labels = torch.arange(569) % 3
    train, test = tables.stratified_split(labels)
    assert sorted(torch.cat([train, test]).tolist()) == list(range(569))
    assert len(train) == 455
    one, other = [torch.bincount(labels[part]) / len(part) for part in (train, test)]
    assert torch.allclose(one, other, atol=0.01)


def same_bits(samples, inputs, labels):
    return torch.equal(samples.inputs, inputs) and torch.equal(samples.labels, labels)


@pytest.mark.long
def test_the_digits_are_bitwise_those_of_scikit_learn():
    table = sklearn_table("digits")
    images = torch.from_numpy(table.images).to(torch.uint8).unsqueeze(1)
    labels = torch.from_numpy(table.target).long()
    for samples, part in zip(tables.digits(), tables.stratified_split(labels), strict=True):
        assert same_bits(samples, images[part], labels[part])


def test_the_cancer_table_is_bitwise_that_of_scikit_learn():
    table = sklearn_table("breast_cancer")
    values, labels = torch.from_numpy(table.data), torch.from_numpy(table.target).long()
    split = tables.stratified_split(labels)
    deviation, mean = torch.std_mean(values[split[0]], dim=0)
    values = ((values - mean) / deviation).float()
    for samples, part in zip(tables.breast_cancer(), split, strict=True):
        assert same_bits(samples, values[part], labels[part])


@pytest.mark.long
def test_the_built_in_tables_are_read_without_importing_scikit_learn(monkeypatch):
    packages = {"sklearn", "scipy", "pandas"}
    for module in [name for name in sys.modules if name.partition(".")[0] in packages]:
        monkeypatch.delitem(sys.modules, module)
    for name in ("digits", "breast_cancer"):
        getattr(tables, name)()
    assert not packages & sys.modules.keys()


@pytest.mark.parametrize("name", ["digits", "breast_cancer"])
def test_a_missing_scikit_learn_is_a_user_error_with_the_command(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)  # as for an import: it is not installed
    with pytest.raises(UserError, match="scikit-learn.*\n.*-m pip install scikit-learn"):
        getattr(tables, name)()
