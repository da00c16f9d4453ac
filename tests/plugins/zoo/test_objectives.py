"""The objectives and the schedule of this plugin."""

import dataclasses
import math
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional

from slurm_job_kit.jobs.contract.spec import Train
from slurm_job_kit.trainer.errors import UserError
from slurm_job_kit.trainer.model import objectives
from slurm_job_kit.trainer.model.objectives import DataFacts, check_sums, means
from slurm_job_kit.trainer.plugins.zoo.objectives import LanguageModel, Regression
from tests.core.model.test_classification import found, scores
from tests.core.model.test_objectives import Gives
from tests.core.model.test_optim import WARM_UP, rates_of

TRAIN = Train(dataset="mine", model="net")
DATA = DataFacts(TRAIN, num_classes=3)


def created(objective, **args):
    train = dataclasses.replace(TRAIN, objective=objective, objective_args=args)
    return objectives.create(DataFacts(train, num_classes=3))


@pytest.mark.parametrize(
    ("loss", "expected"),
    [("mse", functional.mse_loss), ("mae", functional.l1_loss), ("huber", functional.huber_loss)],
)
@pytest.mark.parametrize(("outputs", "targets"), [((4, 2), (4, 2)), ((4, 1), (4,)), ((4,), (4,))])
def test_regression_is_the_mean_over_all_numbers(loss, expected, outputs, targets):
    values, wanted = scores(*outputs), 3 * torch.randn(targets).double()
    objective = created("regression", loss=loss)
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
    words = r"float32 \(4, 2\) for targets of shape \(4,\) of mine\n.* have it return a te"
    with pytest.raises(UserError, match=words):
        Regression(DATA)(Gives(scores(4, 2)), (torch.zeros(4), torch.zeros(4)))
    with pytest.raises(UserError, match=r"returns a dict for targets of shape \(4,\)"):
        Regression(DATA)(Gives({}), (torch.zeros(4), torch.zeros(4)))
    with pytest.raises(UserError, match="objective_args.loss is 'l3': write one of mse, mae, hub"):
        created("regression", loss="l3")


TOKENS = torch.tensor([[1, 4, 2, 0, 3], [2, 2, 1, 3, 4]])


KNOWN = TOKENS[:, 1:].clone()
KNOWN[1, 2] = -100
MASKED = torch.cat([TOKENS[:, :1], KNOWN], dim=1)


@pytest.mark.parametrize(
    ("batch", "targets"),
    [
        (TOKENS, TOKENS[:, 1:]),
        ((TOKENS[:, :-1], TOKENS[:, 1:]), TOKENS[:, 1:]),
        ({"input_ids": TOKENS, "labels": TOKENS, "other": "ignored"}, TOKENS[:, 1:]),
        ((TOKENS[:, :-1], KNOWN), KNOWN),
        ({"input_ids": TOKENS, "labels": MASKED}, KNOWN),
    ],
)
@pytest.mark.parametrize("wrap", [lambda logits: logits, lambda x: SimpleNamespace(logits=x)])
def test_a_language_model_predicts_the_next_token(batch, targets, wrap):
    logits = scores(2, 4, 5)
    objective, model = LanguageModel(DataFacts(TRAIN, bytes_per_token=4.0)), Gives(wrap(logits))
    sums = objective(model, batch)
    check_sums(sums, "x")
    assert torch.equal(model.inputs, TOKENS[:, :-1])
    assert isinstance(sums.num_items, int) is isinstance(batch, torch.Tensor)
    assert int(sums.num_items) == (targets != -100).sum()
    loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).item()
    assert means((), sums.row().tolist(), objective) == {
        "loss": pytest.approx(loss),
        "perplexity": pytest.approx(math.exp(loss)),
        "bits_per_byte": pytest.approx(loss / math.log(2) / 4),
    }


def test_bits_per_byte_need_the_length_of_a_token_and_perplexity_stays_a_number():
    assert LanguageModel(DATA).derive({"loss": 1e4}) == {"perplexity": math.exp(700)}


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        (scores(2, 3, 5), r"\(2, 3, 5\) for targets of shape \(2, 4\)\n.* have it ret"),
        ({"a": 1}, r"returns a dict for targets of shape \(2, 4\)\n.* logits \[n, T, v"),
    ],
)
def test_logits_that_do_not_fit_the_tokens_are_refused(outputs, words):
    with pytest.raises(UserError, match=words):
        LanguageModel(DATA)(Gives(outputs), TOKENS)


@pytest.mark.parametrize(
    ("train", "num_steps", "expected"),
    [
        (
            {"schedule": "wsd", "warmup_steps": 4, "lr_decay_fraction": 0.25},
            40,
            [*WARM_UP, *[0.4] * 27, *(0.04 * left for left in range(9, 0, -1))],
        ),
        (
            {"schedule": "wsd", "lr_decay_fraction": 1.0},
            8,
            [0.05 * left for left in range(8, 0, -1)],
        ),
    ],
)
def test_the_learning_rate_follows_the_schedule_of_the_plugin(train, num_steps, expected):
    assert rates_of(Train(lr=0.4, **train), num_steps) == pytest.approx(expected)
