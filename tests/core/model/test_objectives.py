"""The objectives of users, and what is checked of their sums."""

import re
from typing import Any

import pytest
import torch
from torch import nn

from slurm_job_kit.jobs.contract.spec import Train
from slurm_job_kit.trainer.errors import UserError
from slurm_job_kit.trainer.model import objectives
from slurm_job_kit.trainer.model.objectives import DataFacts, Sums, check_sums, means


def created(name, **args):
    train = Train(objective=f"{__name__}:{name}", objective_args=args)
    return objectives.create(DataFacts(train))


class Gives(nn.Module):
    """A model that returns the same outputs for any inputs, which it remembers."""

    def __init__(self, outputs):
        super().__init__()
        self.outputs = outputs
        self.inputs: Any = None

    def forward(self, inputs):
        self.inputs = inputs
        return self.outputs


LOSS = torch.ones((), requires_grad=True)


@pytest.mark.parametrize(
    ("sums", "words"),
    [
        (LOSS, "returns a Tensor: return slurm_job_kit.trainer.api.Sums"),
        (Sums(3.0, 1), "returns its loss as a float: make it the sum over the items, a tensor []"),  # type: ignore[arg-type]
        (Sums(torch.ones(()), 4), "the loss depends on no trainable parameter of train.model\n  h"),
        (Sums(LOSS, torch.ones(4)), "returns num_items as a Tensor of shape (4,): make it the sum"),
        (Sums(LOSS, True), "returns num_items as a bool: make it the sum"),
        (Sums(LOSS, 4, {"far": 2}), "returns far as a int: make it the sum over the items"),  # type: ignore[dict-item]
        (Sums(LOSS, 4, {"loss": torch.ones(())}), "returns a metric named loss: that name is tak"),
    ],
)
def test_sums_that_cannot_be_added_up_are_refused_with_the_fix(sums, words):
    with pytest.raises(UserError, match=f"^train.objective mine:f:? {re.escape(words)}"):
        check_sums(sums, "mine:f")


def test_sums_of_tensors_and_of_a_number_are_one_row():
    metrics = {"far": torch.tensor(3), "near": 2.5 * LOSS}
    for num_items in (7, torch.tensor(7), 7 * LOSS):
        sums = Sums(2 * LOSS, num_items, metrics)
        for row in (sums.row(), sums.row_on_device()):
            assert row.tolist() == [2, 7, 3, 2.5] and row.dtype == torch.float64
            assert not row.requires_grad


def scaled(model: nn.Module, batch: Any, factor: float = 1.0) -> Sums:
    """A user's function."""
    return Sums(factor * model(batch), 1)


class Named:
    """A user's class with a derived value."""

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, model, batch):
        return Sums(self.factor * model(batch), 1)

    def derive(self, means):
        return {"double": 2 * means["loss"]}


def test_an_objective_of_the_user_is_a_function_or_a_class_with_arguments():
    for name, args, loss in (
        ("scaled", {}, 1),
        ("scaled", {"factor": 3.0}, 3),
        ("Named", {"factor": 2}, 2),
    ):
        objective = created(name, **args)
        sums = objective(Gives(LOSS), None)
        assert sums.loss.item() == loss
        if name == "Named":
            assert means((), [6.0, 2.0], objective) == {"loss": 3, "double": 6}


class Changing:
    """A user's class that returns `later` from its second call on."""

    def __init__(self, later, derived=None):
        self.given, self.derived, self.calls = [Sums(LOSS, 1), later], derived, 0

    def __call__(self, model, batch):
        self.calls += 1
        return self.given[min(self.calls, 2) - 1]

    def derive(self, means):
        self.calls += 1
        return self.derived[min(self.calls, 2) - 1]


def test_every_result_of_a_users_objective_is_checked():
    objective = created("Changing", later=None)
    objective(Gives(LOSS), None)
    with pytest.raises(UserError, match=f"^train.objective {__name__}:Changing returns a NoneType"):
        objective(Gives(LOSS), None)


def test_an_evaluation_needs_no_graph_of_the_loss():
    later = Sums(LOSS.detach(), 1)
    objective = created("Changing", later=later)
    with torch.no_grad():
        objective(Gives(LOSS), None)
        assert objective(Gives(LOSS), None) is later


@pytest.mark.parametrize(
    ("derived", "words"),
    [
        ([{"loss": 1.0}] * 2, "derive returns loss, which is a mean already: rename"),
        ([{"more": "text"}] * 2, "ValueError: could not convert string to float"),
    ],
)
def test_what_an_objective_derives_is_checked_each_time(derived, words):
    objective = created("Changing", later=None, derived=derived)
    with pytest.raises(UserError, match=f"^train.objective {__name__}:Changing: {words}"):
        for _ in range(2):
            means(("far",), [1.0, 1.0, 1.0], objective)


class Weighted(nn.Module):
    """A user's objective with parameters."""

    def __init__(self, is_trained):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()), requires_grad=is_trained)

    def forward(self, model, batch):
        return Sums(self.weight * model(batch), 1)


def test_an_objective_with_parameters_that_nothing_trains_is_refused():
    name = f"{__name__}:Weighted"
    with pytest.raises(UserError, match=f"^train.objective: {name} has trainable parameters, but"):
        created("Weighted", is_trained=True)
    objective = created("Weighted", is_trained=False)
    assert objective(Gives(LOSS), None).loss.item() == 1
