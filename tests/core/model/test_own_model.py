"""A model of the user, and names that are none."""

import pytest
import torch

from slurm_job_kit.jobs.contract.spec import Train
from slurm_job_kit.jobs.plugins import PLUGINS
from slurm_job_kit.trainer.errors import UserError
from slurm_job_kit.trainer.model import models
from slurm_job_kit.trainer.model.objectives import DataFacts
from slurm_job_kit.trainer.user_code import load


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


def test_a_name_of_a_plugin_that_is_not_there_names_the_plugin(monkeypatch):
    monkeypatch.delitem(PLUGINS, "zoo", raising=False)
    words = (
        "^train.model: gpt needs the plugin zoo, which this copy of the kit does not have: name a"
    )
    with pytest.raises(UserError, match=words):
        created("gpt")
