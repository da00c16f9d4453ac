"""The models of the core, fitted to the data; those of a user, and names that are none."""

import pytest
import torch
from torch import nn

from slurm_job_kit.jobs.contract.spec import Train
from slurm_job_kit.trainer.errors import UserError
from slurm_job_kit.trainer.model import models
from slurm_job_kit.trainer.model.objectives import DataFacts
from slurm_job_kit.trainer.user_code import load


def create(name, args, *shape, num_classes=10):
    train = Train(model=name, model_args=args)
    return models.create(DataFacts(train, num_classes), torch.zeros(shape))


def test_mini_resnet_has_three_stages_of_two_blocks():
    model = create("mini_resnet", {}, 5, 1, 8, 8)
    assert [block.conv2.out_channels for block in model.blocks] == [64, 64, 128, 128, 256, 256]
    assert model.blocks(model.stem(torch.zeros(2, 1, 8, 8))).shape == (2, 256, 2, 2)
    assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


def test_a_model_of_images_refuses_other_inputs_with_their_shape():
    with pytest.raises(UserError, match=r"mini_resnet takes images .*, but .* of shape \(4, 30\)"):
        create("mini_resnet", {}, 4, 30)


def test_an_mlp_drops_out_after_each_hidden_layer_and_has_the_arguments_of_the_spec():
    model = create("mlp", {"hidden": [5, 6], "dropout": 0.5, "num_classes": 7}, 4, 30)
    assert [layer.p for layer in model if isinstance(layer, nn.Dropout)] == [0.5, 0.5]
    assert model(torch.zeros(3, 30)).shape == (3, 7)


@pytest.mark.parametrize(
    ("inputs", "num_outputs", "words"),
    [
        (torch.zeros(4, 30), None, "mlp needs the number of classes, but train.dataset x has no"),
        ({"a": torch.zeros(4)}, 2, "mlp takes one tensor of numbers, but .* are a dict\n.*: name"),
        (
            torch.zeros(4, 30).long(),
            2,
            r"mlp takes one tensor .* x are torch.int64 \(4, 30\)\n  hint: name a",
        ),
    ],
)
def test_a_built_in_model_refuses_data_that_it_cannot_be_fitted_to(inputs, num_outputs, words):
    with pytest.raises(UserError, match=f"^train.model {words}"):
        models.create(DataFacts(Train(model="mlp", dataset="x"), num_outputs), inputs)


def created(name, **args):
    return models.create(DataFacts(Train(model=name, model_args=args)), torch.zeros(4, 3))


def test_a_users_model_gets_only_the_arguments_of_the_spec():
    model = created("torch.nn:Linear", in_features=3, out_features=2)
    assert isinstance(model, torch.nn.Linear) and model.weight.shape == (2, 3)
    with pytest.raises(UserError, match="train.model: builtins:dict returns a dict, not a torch"):
        created("builtins:dict")


def test_unknown_names_and_arguments_are_user_errors():
    with pytest.raises(UserError, match=r"train.model: 'resnet' is neither one of mlp nor"):
        load("train.model", "resnet", {"mlp": dict})
    with pytest.raises(UserError, match="train.model: nowhere:model: No module named 'nowhere'"):
        load("train.model", "nowhere:model")
    with pytest.raises(UserError, match="train.model: os:nothing: module 'os' has no attribute"):
        load("train.model", "os:nothing")
    with pytest.raises(UserError, match="train.model_args: .*unexpected keyword argument 'width'"):
        created("torch.nn:Linear", width=3)
