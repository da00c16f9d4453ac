"""Initial weights of a model that is too large to create whole on each rank."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from slurm_job_kit.jobs.contract.spec import Train
from slurm_job_kit.trainer.errors import UserError
from slurm_job_kit.trainer.plugins.sharded import meta_init
from slurm_job_kit.trainer.strategy.interface import Rows, Sharding, Strategy
from tests.core.ranks import CPU, place_of
from tests.parts import Transformer


class Divided(Strategy):
    """One of three ranks, whose parameters fully_shard has divided."""

    def __init__(self):
        self.sharding = Sharding(3, 1)

    def part(self, value, owner=None):
        return Rows(value.to_local(), tuple(value.shape))


def transformer():
    return Transformer(layers=2, width=40, vocabulary=100)


def built(create, monkeypatch, limit=0):
    monkeypatch.setattr(meta_init, "LIMIT_BYTES", limit)
    return meta_init.build(create)


def filled(create, monkeypatch, seed=0):
    module, is_on_meta = built(create, monkeypatch)
    assert is_on_meta
    meta_init.allocate(module, CPU)
    meta_init.fill(module, Strategy(Train(), place_of(), CPU), seed)
    return module


def net():
    layers = (nn.Conv2d(3, 40, 3), nn.BatchNorm2d(40), nn.Flatten(), nn.LSTM(40, 30))
    return nn.Sequential(*layers, nn.Embedding(50, 20))


@pytest.mark.parametrize("create", [transformer, net])
def test_the_values_are_distributed_as_those_of_the_models_own_code(create, monkeypatch):
    own, other = create(), filled(create, monkeypatch)
    assert own.state_dict().keys() == other.state_dict().keys()
    for (name, expected), value in zip(
        own.state_dict().items(), other.state_dict().values(), strict=True
    ):
        assert (value.shape, value.dtype) == (expected.shape, expected.dtype), name
        if expected.numel() > 500:
            assert value.std().item() == pytest.approx(expected.std().item(), rel=0.15), name
        elif expected.float().std(correction=0) == 0:
            assert torch.equal(value, expected), name


def test_the_values_depend_on_the_seed_and_the_name_only(monkeypatch):
    torch.manual_seed(1)
    first = filled(transformer, monkeypatch).state_dict()
    torch.manual_seed(2)
    again = filled(transformer, monkeypatch).state_dict()
    other = filled(transformer, monkeypatch, seed=1).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    name = "layers.0.up.weight"
    assert not torch.equal(first[name], other[name])
    assert not torch.equal(first[name], first[name.replace("0", "1")])


def test_a_tied_parameter_stays_one(monkeypatch):
    model = filled(transformer, monkeypatch)
    assert model.head.weight is model.embedding.weight


def test_each_rank_has_its_rows_of_the_same_values(monkeypatch):
    whole = filled(transformer, monkeypatch).state_dict()
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=3)
    try:
        model, _ = built(transformer, monkeypatch)
        fully_shard(model)
        meta_init.allocate(model, CPU)
        meta_init.fill(model, Divided(), 0)
        for name, value in model.state_dict().items():
            first, end = Sharding(3, 1).rows(len(whole[name]))
            assert torch.equal(value.to_local(), whole[name][first:end]), name
    finally:
        dist.destroy_process_group()


def test_buffers_have_the_values_of_the_models_code(monkeypatch):
    def create():
        module = nn.Linear(4, 4)
        module.register_buffer("mask", torch.ones(4, 4).tril(), persistent=False)
        return module

    assert torch.equal(filled(create, monkeypatch).mask, torch.ones(4, 4).tril())


class Scaled(nn.Linear):
    """Its own code writes `scale`; `reset_parameters` writes the elements `rows` of it."""

    def __init__(self, rows):
        self.rows = rows
        super().__init__(4, 4)
        self.scale = nn.Parameter(torch.ones(4))

    def reset_parameters(self):
        super().reset_parameters()
        if hasattr(self, "scale"):  # torch calls it in __init__, too
            self.scale[self.rows] = 1


@pytest.mark.parametrize("unwritten", [1, 4])
def test_a_parameter_with_an_element_that_nothing_writes_is_refused_by_name(monkeypatch, unwritten):
    words = "^train.model: 0.scale has an element whose initial value nothing writes\n"
    with pytest.raises(UserError, match=words):
        filled(lambda: nn.Sequential(Scaled(slice(unwritten, None))), monkeypatch)
    assert torch.equal(filled(lambda: Scaled(slice(None)), monkeypatch).scale, torch.ones(4))


def test_a_model_up_to_the_limit_is_created_whole(monkeypatch):
    size = sum(each.nbytes for each in nn.Linear(9, 9).parameters())
    assert built(lambda: nn.Linear(9, 9), monkeypatch, size)[1] is False
    assert built(lambda: nn.Linear(9, 9), monkeypatch, size - 1)[1] is True
