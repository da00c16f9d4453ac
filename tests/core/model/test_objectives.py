"""The built-in objectives, the user's own, and what is checked of their sums."""

import math
import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from slurm_job_kit.trainer.errors import UserCodeError, UserError
from slurm_job_kit.trainer.model import objectives
from slurm_job_kit.trainer.model.objectives import (
    Classification,
    DataFacts,
    LanguageModel,
    Regression,
    Sums,
    check_sums,
    means,
)

DATA = DataFacts("mine", num_classes=3, model="net")


class Gives(nn.Module):
    """A model that returns the same outputs for any inputs, which it remembers."""

    def __init__(self, outputs):
        super().__init__()
        self.outputs = outputs
        self.inputs: Any = None

    def forward(self, inputs):
        self.inputs = inputs
        return self.outputs


def scores(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), requires_grad=True)


def found(objective, outputs, batch):
    """The means of one batch."""
    sums = objective(Gives(outputs), batch)
    check_sums(sums, "x")
    return means(tuple(sums.metrics), sums.row().tolist(), objective)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_classification_of_labels_of_any_integers(dtype):
    outputs, labels = scores(4, 3), torch.tensor([0, 2, 1, 1])
    values = found(Classification(DATA), outputs, (torch.zeros(4), labels.to(dtype)))
    assert values == {
        "loss": pytest.approx(functional.cross_entropy(outputs, labels).item()),
        "accuracy": (outputs.argmax(1) == labels).sum().item() / 4,
    }


def test_labels_are_smoothed_in_training_only():
    outputs, labels = scores(4, 3), torch.tensor([0, 2, 1, 1])
    objective, model = Classification(DATA, label_smoothing=0.2), Gives(outputs)
    for is_training, smoothing in ((True, 0.2), (False, 0.0)):
        model.train(is_training)
        loss = objective(model, (torch.zeros(4), labels)).loss / 4
        expected = functional.cross_entropy(outputs, labels, label_smoothing=smoothing)
        assert loss.item() == pytest.approx(expected.item())


def test_pixels_without_a_label_count_in_neither_loss_nor_accuracy():
    outputs = scores(2, 3, 4, 5)
    labels = torch.arange(40).reshape(2, 4, 5) % 3
    labels[0, 0], labels[1, :, 2:] = -100, -100
    known = labels != -100
    sums = Classification(DATA)(Gives(outputs), (torch.zeros(2), labels))
    assert isinstance(sums.num_items, torch.Tensor) and sums.num_items.item() == known.sum() == 23
    values = found(Classification(DATA), outputs, (torch.zeros(2), labels))
    per_pixel = outputs.permute(0, 2, 3, 1)[known]
    assert values["loss"] == pytest.approx(
        functional.cross_entropy(per_pixel, labels[known]).item()
    )
    assert values["accuracy"] == (per_pixel.argmax(1) == labels[known]).sum().item() / 23


@pytest.mark.parametrize(
    ("outputs", "labels", "words"),
    [
        (
            scores(4, 3),
            torch.zeros(4),
            "train.dataset mine returns labels torch.float32 (4,): make them int64, or take "
            "train.objective regression",
        ),
        (
            (scores(4, 3), None),
            torch.zeros(4).long(),
            "train.model net returns a tuple: have it return a tensor of scores [n, 3]",
        ),
        (
            scores(4, 2),
            torch.zeros(4).long(),
            "train.model net returns scores of shape (4, 2), but the labels of mine name 3 classes",
        ),
        (
            scores(4),
            torch.zeros(4).long(),
            "train.model net returns scores of shape (4,), but the labels of mine name 3 classes",
        ),
        (
            scores(4, 3),
            torch.zeros(4, 1).long(),
            "train.model net returns scores of shape (4, 3) for labels of shape (4, 1) of mine: "
            "make them [n, classes, ...] and [n, ...]",
        ),
    ],
)
def test_a_classification_that_does_not_fit_names_both_sides(outputs, labels, words):
    with pytest.raises(UserError) as caught:
        Classification(DATA)(Gives(outputs), (torch.zeros(4), labels))
    assert str(caught.value) == words


@pytest.mark.parametrize("batch", [torch.zeros(4), {"x": torch.zeros(4)}, (torch.zeros(4), 3)])
@pytest.mark.parametrize("name", ["classification", "regression"])
def test_a_batch_that_is_no_pair_is_refused_with_the_way_out(name, batch):
    objective = objectives.create(name, {}, 0.0, DATA)
    kind = type(batch).__name__
    words = (
        rf"train.objective {name} needs batches \(inputs, targets\), but train.dataset mine "
        f"returns a {kind}: return pairs, or name your own train.objective"
    )
    with pytest.raises(UserError, match=words):
        objective(Gives(scores(4, 3)), batch)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [("mse", functional.mse_loss), ("mae", functional.l1_loss), ("huber", functional.huber_loss)],
)
@pytest.mark.parametrize(("outputs", "targets"), [((4, 2), (4, 2)), ((4, 1), (4,)), ((4,), (4,))])
def test_regression_is_the_mean_over_all_numbers(loss, expected, outputs, targets):
    values, wanted = scores(*outputs), 3 * torch.randn(targets).double()
    objective = objectives.create("regression", {"loss": loss}, 0.0, DATA)
    means_ = found(objective, values, (torch.zeros(4), wanted))
    flat, wanted = values.reshape(targets), wanted.float()
    mse = functional.mse_loss(flat, wanted).item()
    assert means_ == {
        "loss": pytest.approx(expected(flat, wanted).item()),
        "mse": pytest.approx(mse),
        "mae": pytest.approx(functional.l1_loss(flat, wanted).item()),
        "rmse": pytest.approx(math.sqrt(mse)),
    }


def test_a_regression_that_does_not_fit_names_both_sides():
    words = r"returns outputs of shape \(4, 2\) for targets of shape \(4,\) of mine: make them al"
    with pytest.raises(UserError, match=words):
        Regression(DATA)(Gives(scores(4, 2)), (torch.zeros(4), torch.zeros(4)))
    with pytest.raises(UserError, match=r"a dict: have it return .* targets' shape \(4,\)"):
        Regression(DATA)(Gives({}), (torch.zeros(4), torch.zeros(4)))
    with pytest.raises(UserError, match="objective_args.loss is 'l3': write one of mse, mae, hub"):
        objectives.create("regression", {"loss": "l3"}, 0.0, DATA)
    with pytest.raises(UserError, match="train.objective_args: .* argument 'width'"):
        objectives.create("regression", {"width": 3}, 0.0, DATA)


TOKENS = torch.tensor([[1, 4, 2, 0, 3], [2, 2, 1, 3, 4]])


@pytest.mark.parametrize(
    ("batch", "mask"),
    [
        (TOKENS, None),
        ((TOKENS[:, :-1], TOKENS[:, 1:]), None),
        ({"input_ids": TOKENS, "labels": TOKENS, "other": "ignored"}, None),
        ((TOKENS[:, :-1], TOKENS[:, 1:].clone()), (1, 2)),
        ({"input_ids": TOKENS, "labels": TOKENS.clone()}, (1, 2)),
    ],
)
@pytest.mark.parametrize(
    "wrap", [lambda logits: logits, lambda logits: SimpleNamespace(logits=logits)]
)
def test_a_language_model_predicts_the_next_token(batch, mask, wrap):
    logits, targets = scores(2, 4, 5), TOKENS[:, 1:].clone()
    if mask is not None:
        row, column = mask
        targets[row, column] = -100
        given = batch["labels"] if isinstance(batch, dict) else batch[1]
        given[row, column + isinstance(batch, dict)] = -100
    objective, model = LanguageModel(DataFacts("x", bytes_per_token=4.0)), Gives(wrap(logits))
    sums = objective(model, batch)
    check_sums(sums, "x")
    assert torch.equal(model.inputs, TOKENS[:, :-1])
    assert isinstance(sums.num_items, int) is isinstance(batch, torch.Tensor)
    assert int(sums.num_items) == 8 - (mask is not None)
    loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).item()
    assert means((), sums.row().tolist(), objective) == {
        "loss": pytest.approx(loss),
        "perplexity": pytest.approx(math.exp(loss)),
        "bits_per_byte": pytest.approx(loss / math.log(2) / 4),
    }


def test_bits_per_byte_need_the_length_of_a_token_and_perplexity_stays_a_number():
    assert LanguageModel(DATA).derive({"loss": 1e4}) == {"perplexity": math.exp(700)}
    own = objectives.create("language_model", {"bytes_per_token": 2.0}, 0.0, DATA)
    assert own.derive({"loss": math.log(2)})["bits_per_byte"] == 0.5  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        (scores(2, 3, 5), r"returns \(2, 3, 5\) for targets of shape \(2, 4\): have it return log"),
        ({"a": 1}, r"returns dict for targets of shape \(2, 4\): have it return logits \[n, T, v"),
    ],
)
def test_logits_that_do_not_fit_the_tokens_are_refused(outputs, words):
    with pytest.raises(UserError, match=words):
        LanguageModel(DATA)(Gives(outputs), TOKENS)


LOSS = torch.ones((), requires_grad=True)
ELSEWHERE = torch.ones((), device="meta")


@pytest.mark.parametrize(
    ("sums", "words"),
    [
        (LOSS, "returns a Tensor: return slurm_job_kit.trainer.api.Sums"),
        (Sums(3.0, 1), "returns a float as its loss: return the sum over the items, a tensor []"),  # type: ignore[arg-type]
        (
            Sums(torch.ones(4, requires_grad=True), 4),
            "returns a tensor of shape (4,) as its loss: ",
        ),
        (Sums(torch.ones(()), 4), "the loss depends on no trainable parameter of train.model: rem"),
        (Sums(torch.ones((), dtype=torch.int64), 4), "returns its loss as torch.int64: make it a"),
        (Sums(LOSS, torch.ones(4)), "returns num_items as a tensor of shape (4,): make it an int"),
        (Sums(LOSS, 4.0), "returns num_items as a float: make it an int or a tensor []"),  # type: ignore[arg-type]
        (Sums(LOSS, True), "returns num_items as a bool: make it an int or a tensor []"),
        (Sums(LOSS, 4, {"far": ELSEWHERE}), "returns far on meta, but its loss is on cpu: move it"),
        (Sums(LOSS, LOSS * 2), "returns num_items with its graph: call detach() on it"),
        (Sums(LOSS, 4, {"far": 2}), "returns far as a int: make it a tensor []"),  # type: ignore[dict-item]
        (Sums(LOSS, 4, {"far": torch.ones(2)}), "returns far as a tensor of shape (2,): make it"),
        (Sums(LOSS, 4, {"far": LOSS * 2}), "returns far with its graph: call detach() on it"),
        (Sums(LOSS, 4, {"loss": torch.ones(())}), "returns a metric named loss: that name is tak"),
    ],
)
def test_sums_that_cannot_be_added_up_are_refused_with_the_fix(sums, words):
    with pytest.raises(UserError, match=f"^train.objective mine:f:? {re.escape(words)}"):
        check_sums(sums, "mine:f")


def test_sums_of_tensors_and_of_a_number_are_one_row():
    metrics = {"far": torch.tensor(3), "near": torch.tensor(2.5)}
    for num_items in (7, torch.tensor(7)):
        row = Sums(2 * LOSS, num_items, metrics).row()
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
        objective = objectives.create(f"{__name__}:{name}", args, 0.0, DATA)
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


@pytest.mark.parametrize(
    ("later", "is_training", "words"),
    [
        (None, True, "returns a NoneType: return slurm_job_kit.trainer.api.Sums"),
        ((LOSS, 4), False, "returns a tuple: return slurm_job_kit.trainer.api.Sums"),
        (Sums(LOSS.detach(), 1), True, "the loss depends on no trainable parameter"),
        (Sums(LOSS.reshape(1), 1), False, r"returns a tensor of shape \(1,\) as its loss"),
    ],
)
def test_every_result_of_a_users_objective_is_checked(later, is_training, words):
    objective = objectives.create(f"{__name__}:Changing", {"later": later}, 0.0, DATA)
    with torch.set_grad_enabled(is_training):
        objective(Gives(LOSS), None)
        with pytest.raises(UserError, match=f"^train.objective {__name__}:Changing:? {words}"):
            objective(Gives(LOSS), None)


def test_an_evaluation_needs_no_graph_of_the_loss():
    later = Sums(LOSS.detach(), 1)
    objective = objectives.create(f"{__name__}:Changing", {"later": later}, 0.0, DATA)
    with torch.no_grad():
        objective(Gives(LOSS), None)
        assert objective(Gives(LOSS), None) is later


@pytest.mark.parametrize(
    ("derived", "error", "words"),
    [
        ([None, None], UserError, "derive returns a NoneType, not a dict of numbers"),
        ([{"loss": 1.0}] * 2, UserError, "derive returns loss, which is a mean already: rename"),
        ([{"far": 1.0}] * 2, UserError, "derive returns far, which is a mean already: rename it"),
        ([{"a": 1.0}, {"b": 1.0}], UserError, "derive returned a first and now b: return the sam"),
        ([{"a": 1.0}, {}], UserError, "derive returned a first and now nothing: return the same"),
        ([{"a": "x"}] * 2, UserCodeError, "ValueError: could not convert string to float: 'x'"),
    ],
)
def test_what_an_objective_derives_is_checked_each_time(derived, error, words):
    args = {"later": None, "derived": derived}
    objective = objectives.create(f"{__name__}:Changing", args, 0.0, DATA)
    with pytest.raises(error, match=f"^train.objective {__name__}:Changing: {words}"):
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
        objectives.create(name, {"is_trained": True}, 0.0, DATA)
    objective = objectives.create(name, {"is_trained": False}, 0.0, DATA)
    assert objective(Gives(LOSS), None).loss.item() == 1


def test_an_objective_that_cannot_be_made_is_a_user_error():
    with pytest.raises(UserError, match="'hinge' is neither one of classification, regression, l"):
        objectives.create("hinge", {}, 0.0, DATA)
    with pytest.raises(UserError, match="makes a OrderedDict that cannot be called"):
        objectives.create("collections:OrderedDict", {}, 0.0, DATA)
    with pytest.raises(UserError, match="train.objective_args: .*unexpected .*'width'"):
        objectives.create(f"{__name__}:Named", {"width": 1}, 0.0, DATA)
