"""The small GPT: what a position depends on, its parameters, and how it is fitted to the data."""

import math

import pytest
import torch

from slurm_job_kit.jobs.contract.spec import Train
from slurm_job_kit.trainer.errors import UserError
from slurm_job_kit.trainer.model import models
from slurm_job_kit.trainer.model.objectives import DataFacts
from slurm_job_kit.trainer.plugins.zoo.gpt import GPT

SIZE = {"vocab_size": 11, "block_size": 6, "n_layer": 2, "n_head": 2, "n_embd": 8}


def gpt(**changes):
    torch.manual_seed(0)
    return GPT(**SIZE | changes)


def test_a_later_token_changes_no_earlier_logits():
    model, tokens = gpt(), torch.randint(0, 11, (3, 6), generator=torch.Generator().manual_seed(1))
    logits = model(tokens)
    assert logits.shape == (3, 6, 11)
    for position in range(6):
        changed = tokens.clone()
        changed[:, position] = (changed[:, position] + 1) % 11
        differs = (model(changed) != logits).any(dim=2)
        # The token of the position counts there and later, of all that came before.
        assert not differs[:, :position].any() and differs[:, position:].all()


def test_a_shorter_sequence_has_the_same_logits_and_a_longer_one_is_refused():
    model, tokens = gpt(), torch.arange(6).unsqueeze(0)
    assert torch.allclose(model(tokens)[:, :4], model(tokens[:, :4]), atol=1e-6)
    words = r"train.model gpt has block_size 6, but gets 7 tokens\n  hint: make train.model_args"
    with pytest.raises(UserError, match=words):
        model(torch.zeros(1, 7).long())


@pytest.mark.parametrize("bias", [True, False])
def test_parameters_have_the_names_of_gpt_2(bias):
    block = ["ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"]
    layers = [f"h.{n}.{each}" for n in range(2) for each in block] + ["ln_f"]
    expected = ["transformer.wte.weight", "transformer.wpe.weight"]
    for layer in layers:
        expected += [f"transformer.{layer}.weight"] + [f"transformer.{layer}.bias"] * bias
    model = gpt(bias=bias)
    assert [*model.state_dict()] == [*expected, "lm_head.weight"]
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    assert shapes["transformer.h.1.attn.c_attn.weight"] == (24, 8)
    assert shapes["transformer.h.1.mlp.c_proj.weight"] == (8, 32)


def test_the_output_layer_has_the_weights_of_the_embedding():
    model = gpt()
    assert model.lm_head.weight is model.transformer.wte.weight
    model(torch.arange(6).unsqueeze(0)).sum().backward()
    assert len([*model.parameters()]) == len(model.state_dict()) - 1
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_the_ends_of_the_shortcuts_start_smaller_and_vectors_as_zeros_and_ones():
    model = gpt(n_embd=256, vocab_size=500)
    state = model.state_dict()
    assert state["transformer.h.0.mlp.c_fc.weight"].std().item() == pytest.approx(0.02, rel=0.02)
    for name in ("attn.c_proj", "mlp.c_proj"):
        std = state[f"transformer.h.1.{name}.weight"].std().item()
        assert std == pytest.approx(0.02 / math.sqrt(4), rel=0.02)
        assert not state[f"transformer.h.1.{name}.bias"].any()
    assert state["transformer.ln_f.weight"].eq(1).all()
    loss = torch.nn.functional.cross_entropy(
        model(torch.arange(6).unsqueeze(0)).flatten(0, 1), torch.arange(1, 7)
    )
    assert loss.item() == pytest.approx(math.log(500), rel=0.05)  # it prefers no token


TOKENS = torch.zeros(2, 5).long()


def fitted(args, inputs=TOKENS, vocab_size=7):
    train = Train(model="gpt", model_args=args, dataset="x")
    return models.create(DataFacts(train, vocab_size=vocab_size), inputs)


def test_it_is_fitted_to_the_tokens_of_the_data():
    small = {"n_layer": 1, "n_head": 1, "n_embd": 4}
    model = fitted(small)
    assert isinstance(model, GPT)
    assert (model.block_size, model.lm_head.weight.shape) == (5, (7, 4))
    wider = fitted({**small, "vocab_size": 8})
    assert isinstance(wider, GPT) and wider.lm_head.weight.shape == (8, 4)
    with pytest.raises(UserError, match="train.model_args: .*missing .* 'vocab_size'"):
        fitted(small, vocab_size=None)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        (torch.zeros(2, 5), r"torch.float32 \(2, 5\)"),
        (torch.zeros(2, 5, 3).long(), r"torch.int64 \(2, 5, 3\)"),
        ({"input_ids": TOKENS}, "a dict"),
    ],
)
def test_other_inputs_than_tokens_are_refused_with_the_data_sets_that_fit(inputs, words):
    with pytest.raises(
        UserError, match=f"inputs of train.dataset x are {words}\n.* take python_so"
    ):
        fitted({}, inputs)
