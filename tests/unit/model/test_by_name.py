"""Initial weights by name: those of the model's code, in any order and in parts."""

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from slurm_job_kit.trainer import seeds
from slurm_job_kit.trainer.errors import UserError
from slurm_job_kit.trainer.model import by_name, models
from slurm_job_kit.trainer.model.gpt import GPT
from slurm_job_kit.trainer.strategy.interface import Strategy
from slurm_job_kit.trainer.strategy.sharding import Rows, Sharding

CPU = torch.device("cpu")
parametrizations = nn.utils.parametrizations


class Whole(Strategy):
    def __init__(self):
        self.sharding = Sharding(1, 0)

    def wrap(self, module):
        return module

    def accumulate(self, wrapped, is_last):
        raise NotImplementedError


class Divided(Whole):
    def __init__(self, num_shards, rank):
        self.sharding = Sharding(num_shards, rank)

    def part(self, value, owner=None):
        if isinstance(value, dist.tensor.DTensor):
            return Rows(value.to_local(), tuple(value.shape))
        return value


@pytest.fixture
def one_of_three():
    """Rank 1 of three, which exchange nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=3)
    yield Divided(3, 1)
    dist.destroy_process_group()


def small_gpt():
    return GPT(vocab_size=100, block_size=16, n_layer=2)


MODELS = {
    "gpt": small_gpt,
    "resnet18": lambda: models.resnet18(3, 10, "small", zero_init_last=True),
    "resnet50": lambda: models.resnet50(3, 10),
    "mlp": lambda: models.mlp(200, 30),
    "mini_resnet": lambda: models.MiniResNet(3, 10),
    "transformer": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4), 2),
    "lstm": lambda: nn.LSTM(8, 16, 2),
    "spectral_norm": lambda: parametrizations.spectral_norm(nn.Linear(30, 40)),
    "weight_norm": lambda: parametrizations.weight_norm(nn.Linear(30, 40)),
    "old weight_norm": lambda: nn.utils.weight_norm(nn.Linear(30, 40)),
    "bfloat16": lambda: small_gpt().to(torch.bfloat16),
}


LARGE = pytest.mark.slow  # of 23 million parameters, and in the layers of resnet18


def named(model):
    return [*model.named_parameters(), *model.named_buffers()]


def whole(create):
    torch.manual_seed(0)
    return create()


def filled(create, seed=0, strategy=None):
    recorded = by_name.record(create, seed)
    by_name.fill(recorded.module, recorded, strategy or Whole(), CPU)
    return recorded.module


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=LARGE if name == "resnet50" else ()) for name in MODELS]
)
def test_the_values_are_distributed_as_those_of_the_models_own_code(name):
    own, other = whole(MODELS[name]), filled(MODELS[name])
    assert [name for name, _ in named(own)] == [name for name, _ in named(other)]
    for (name, expected), (_, value) in zip(named(own), named(other), strict=True):
        assert (value.shape, value.dtype) == (expected.shape, expected.dtype), name
        assert value.requires_grad == expected.requires_grad, name
        if expected.float().std(correction=0) == 0:
            assert torch.equal(value, expected), name
        elif expected.numel() > 500:
            assert value.std().item() == pytest.approx(expected.std().item(), rel=0.15), name
            assert value.mean().item() == pytest.approx(
                expected.mean().item(), abs=0.2 * expected.std().item()
            ), name


INIT: dict[str, dict[str, Any]] = {
    "normal_": {"mean": 3.0, "std": 0.1},
    "uniform_": {"a": 2.0, "b": 3.0},
    "constant_": {"val": 0.5},
    "kaiming_uniform_": {},
    "kaiming_normal_": {"mode": "fan_out"},
    "xavier_uniform_": {"gain": 2.0},
    "xavier_normal_": {},
    "trunc_normal_": {"std": 0.02, "a": -0.02, "b": 0.02},
    "orthogonal_": {"gain": 2.0},
    "eye_": {},
    "sparse_": {"sparsity": 0.5},
}


@pytest.mark.parametrize("name", INIT)
def test_the_functions_of_nn_init_are_applied(name):
    def create():
        layer = nn.Linear(80, 60)
        getattr(nn.init, name)(layer.weight, **INIT[name])
        return layer

    expected, value = whole(create).weight, filled(create).weight
    for found, wanted in ((value.min(), expected.min()), (value.max(), expected.max())):
        assert found.item() == pytest.approx(wanted.item(), rel=0.35, abs=1e-6)
    assert value.std().item() == pytest.approx(expected.std().item(), rel=0.1)
    assert value.mean().item() == pytest.approx(
        expected.mean().item(), abs=0.1 * expected.std().item()
    )
    if name == "orthogonal_":
        assert torch.allclose(value @ value.T, 4 * torch.eye(60), atol=1e-4)


class Computed(nn.Module):
    """What models compute in their constructors."""

    def __init__(self):
        super().__init__()
        steps = torch.linspace(0, 0.3, 4)
        self.rates = [rate.item() for rate in steps] + steps.tolist()
        self.table = torch.arange(6.0)  # a plain attribute
        self.nested = {"pairs": [torch.tensor([1, 2]), "text"]}
        inverse = 1.0 / 10_000 ** (torch.arange(0, 8, 2) / 8)
        angles = torch.outer(torch.arange(16.0), inverse)
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("rotation", torch.polar(torch.ones_like(angles), angles))
        mask = torch.tril(torch.ones(5, 5, dtype=torch.bool))
        self.register_buffer("mask", mask)
        self.register_buffer("where", mask.nonzero())
        self.register_buffer("numbers", torch.from_numpy(np.arange(4.0) * 2))
        self.register_buffer("by_numpy", torch.from_numpy(np.sin(torch.arange(3.0).numpy())))
        self.slopes = nn.Parameter(torch.tensor([0.5, 0.25]), requires_grad=False)
        self.embedding = nn.Embedding(10, 4, padding_idx=3)
        self.norm = nn.BatchNorm1d(4)
        self.embedding.weight.data[:, 0].zero_()
        with torch.no_grad():
            self.embedding.weight[5:7] = torch.full((4,), 7.0)
            self.slopes.mul_(2)
        self.frozen = copy.deepcopy(self.embedding)
        self.device_seen = (self.slopes.device, self.slopes.is_meta)


def test_what_is_computed_has_the_very_values():
    own, other = whole(Computed), filled(Computed)
    random = {"embedding.weight", "frozen.weight"}
    for (name, expected), (_, value) in zip(named(own), named(other), strict=True):
        assert name in random or torch.equal(value, expected), name
        assert value.requires_grad == expected.requires_grad
    for weight in (other.embedding.weight, other.frozen.weight):
        assert torch.equal(weight[:, 0] == 0, torch.tensor([i not in (5, 6) for i in range(10)]))
        assert (weight[5:7] == 7).all() and (weight[3] == 0).all()
        assert weight[0, 1] != 0
    assert torch.equal(other.frozen.weight, other.embedding.weight)
    assert own.rates == other.rates and own.device_seen == other.device_seen
    assert torch.equal(other.table, own.table)
    assert torch.equal(other.nested["pairs"][0], own.nested["pairs"][0])


@pytest.fixture
def visible_uninitialised_memory():
    """torch.empty is filled with NaN."""
    settings: Any = torch.utils.deterministic
    before = torch.are_deterministic_algorithms_enabled(), settings.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    settings.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(before[0])
    settings.fill_uninitialized_memory = before[1]


@pytest.mark.usefixtures("visible_uninitialised_memory")
def test_memory_that_nothing_writes_to_is_zero():
    class Empty(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.empty(300, 300))

    model = by_name.record(Empty, 0)
    assert not model.value("weight").any()


def test_the_default_dtype_of_the_models_code_is_kept():
    def create():
        torch.set_default_dtype(torch.float64)
        try:
            layer = nn.Linear(3, 3)
            layer.register_buffer("steps", torch.linspace(0, 1, 7))
            layer.register_buffer("halves", torch.full((2,), 0.5))
        finally:
            torch.set_default_dtype(torch.float32)
        return layer

    expected, model = whole(create), filled(create)
    assert torch.equal(model.halves, expected.halves)
    assert torch.allclose(model.steps, expected.steps) and model.steps.dtype == torch.float64


def test_what_is_overwritten_is_not_drawn():
    def create():
        layer = nn.Linear(3, 3)
        nn.init.zeros_(layer.weight)
        assert layer.weight.sum().item() == 0  # the value of a random tensor would be refused
        return layer

    assert not filled(create).weight.any()


def test_a_resume_gets_what_a_checkpoint_has_not(monkeypatch):
    recorded = by_name.record(Computed, 0)
    asked = []

    def value(name, original=recorded.value):
        asked.append(name)
        return original(name)

    monkeypatch.setattr(recorded, "value", value)
    model: Any = recorded.module
    by_name.fill(model, recorded, Whole(), CPU, will_load=True)
    assert "cosine" in asked
    assert not {name for name, _ in model.named_parameters()} & set(asked)
    own = whole(Computed)
    assert torch.equal(model.cosine, own.cosine)
    assert torch.equal(model.table, own.table)


def test_the_values_depend_on_seed_and_name_only():
    create = MODELS["mini_resnet"]
    names = [name for name, _ in named(whole(create))]
    first = by_name.record(create, 1)
    values = {name: first.value(name) for name in names}
    torch.manual_seed(77)
    state = torch.get_rng_state()
    second = by_name.record(create, 1)
    for name in reversed(names):
        assert torch.equal(second.value(name), values[name]), name
    seeds.seed_generators(77, CPU)
    second.value(names[0])
    assert torch.equal(torch.get_rng_state(), state)
    other = by_name.record(create, 2)
    same = [name for name in names if torch.equal(other.value(name), values[name])]
    assert same == [
        name for name in names if "bn" in name or "stem.1" in name or "downsample.1" in name
    ]
    assert not torch.equal(values["blocks.0.conv1.weight"], values["blocks.0.conv2.weight"])


@pytest.fixture(scope="module")
def other_process():
    """What another process finds: `digests` of a model, and `memory_of_filling`."""
    script = f"""
import json
from {__name__} import small_gpt, digests, memory_of_filling
print(json.dumps([digests(small_gpt), memory_of_filling()]))
"""
    # So that glibc returns each freed tensor to the system. Source: mallopt(3).
    env = os.environ | {"MALLOC_MMAP_THRESHOLD_": "1000000"}
    argv = [sys.executable, "-c", script]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.long
def test_another_process_gets_the_same_values(other_process):
    assert other_process[0] == digests(small_gpt)


def digests(create):
    recorded = by_name.record(create, 5)
    return [recorded.value(name).double().sum().item() for name, _ in named(recorded.module)]


def test_a_tied_parameter_stays_one(one_of_three):
    whole_model = filled(small_gpt)
    assert whole_model.lm_head.weight is whole_model.transformer.wte.weight
    recorded = by_name.record(small_gpt, 0)
    model: Any = recorded.module
    fully_shard(model)
    by_name.fill(model, recorded, one_of_three, CPU)
    assert model.lm_head.weight is model.transformer.wte.weight


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize("name", ["gpt", "mini_resnet", "transformer", "lstm"])
def test_a_rank_of_a_divided_model_gets_its_rows(name, one_of_three):
    expected = dict(named(filled(MODELS[name])))
    recorded = by_name.record(MODELS[name], 0)
    for module in list(recorded.module.modules()):
        if isinstance(module, (nn.TransformerEncoderLayer, models.BasicBlock)):
            fully_shard(module)
    fully_shard(recorded.module)
    by_name.fill(recorded.module, recorded, one_of_three, CPU)
    for key, tensor in named(recorded.module):
        part = one_of_three.part(tensor.detach())
        if isinstance(part, Rows):
            first, end = one_of_three.sharding.rows(part.shape[0])
            assert torch.equal(part.local, expected[key][first:end]), key
        else:
            assert torch.equal(part, expected[key]), key


def large():
    return nn.Sequential(*(nn.Linear(2500, 2500, bias=False) for _ in range(8)))  # 200 MB


def memory_mb(key):
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(key)) * 1024 / 1e6


def memory_of_filling():
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    torch.set_num_threads(1)
    recorded = by_name.record(large, 0)
    model: Any = recorded.module
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    by_name.record(lambda: nn.Linear(2, 2), 0).value("weight")  # loads what torch loads late
    before = memory_mb("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here. Source: proc(5)
    by_name.fill(model, recorded, Divided(4, 1), CPU)
    share = sum(each.to_local().numel() * 4 for each in model.parameters())
    return memory_mb("VmHWM") - before, share / 1e6


def test_a_rank_holds_its_share_and_one_tensor(other_process):
    used, share = other_process[1]
    assert share == pytest.approx(50, abs=1)
    assert share < used < share + 25 + 10


def random_branch():
    layer = nn.Linear(3, 3)
    assert layer.weight.abs().max() < 10
    return layer


def to_numpy():
    layer: Any = nn.Linear(3, 3)
    layer.table = layer.weight.detach().numpy()
    return layer


def own_generator():
    layer = nn.Linear(3, 3)
    nn.init.normal_(layer.weight, generator=torch.Generator())
    return layer


def hidden_parameter():
    layer: Any = nn.Linear(3, 3)
    layer.tied = [layer.weight]
    return layer


def test_a_parameter_in_a_plain_list_is_the_same_one_or_refused(one_of_three):
    model = filled(hidden_parameter)
    assert model.tied[0] is model.weight
    recorded = by_name.record(hidden_parameter, 0)
    fully_shard(recorded.module)
    with pytest.raises(UserError, match="the attribute tied refers to a parameter"):
        by_name.fill(recorded.module, recorded, one_of_three, CPU)


OUTSIDE = torch.ones(3)


def changes_the_outside():
    OUTSIDE.mul_(2)
    return nn.Linear(3, 3)


@pytest.mark.parametrize(
    "create",
    [
        *(random_branch, to_numpy, own_generator, changes_the_outside),
        lambda: parametrizations.orthogonal(nn.Linear(3, 4)),
    ],
)
def test_code_that_cannot_be_recorded_is_refused_with_the_way_out(create):
    with pytest.raises(
        UserError, match=r"train.init: by_name: (.|\n)*hint: set train.init to whole"
    ):
        filled(create)


@pytest.mark.parametrize("library", ["torch", "safetensors"])
def test_weights_from_a_file_are_refused(library, tmp_path):
    load: Any = safetensors.torch.load_file if library == "safetensors" else torch.load
    save: Any = safetensors.torch.save_file if library == "safetensors" else torch.save
    save(nn.Linear(3, 3).state_dict(), tmp_path / "weights")

    def create():
        layer = nn.Linear(3, 3)
        layer.load_state_dict(load(tmp_path / "weights"))
        return layer

    with pytest.raises(UserError, match="set train.init to whole"):
        by_name.record(create, 0)


def test_a_value_that_cannot_be_computed_names_its_tensor():
    def create():
        layer = nn.Linear(3, 3)
        rows = torch.full((3, 3), 7)  # out of bounds, which the meta device does not notice
        layer.weight.copy_(torch.gather(torch.zeros(3, 3), 0, rows))
        return layer

    recorded = by_name.record(create, 0)
    with pytest.raises(UserError, match="the initial value of weight: "):
        recorded.value("weight")


def test_mistakes_of_the_models_code_stay_what_they_are():
    def create():
        return torch.zeros(3) + torch.zeros(4)

    with pytest.raises(RuntimeError, match="broadcast"):
        by_name.record(create, 0)


def is_recorded(init, create, limit):
    model, recorded = by_name.build(init, create, 0, limit)
    assert next(model.parameters()).is_meta == (recorded is not None)
    return recorded is not None


def test_auto_is_by_name_above_a_fixed_size():
    def linear():
        return nn.Linear(10, 10)

    def copies():
        layer = linear()
        return nn.ModuleList(copy.deepcopy(layer) for _ in range(3))

    assert not is_recorded("auto", linear, 440) and is_recorded("auto", linear, 439)
    assert is_recorded("auto", copies, 440)
    assert is_recorded("by_name", linear, 440)
    assert not is_recorded("whole", linear, 439) and not is_recorded("whole", copies, 440)


def test_a_model_may_set_a_submodule_to_none():
    def create():
        model: Any = nn.Linear(3, 3)
        model.head = nn.Linear(3, 3)
        model.head = None
        model.register_module("skip", None)
        return model

    for init in ("auto", "whole"):
        assert by_name.build(init, create, 0)[0].head is None
    assert filled(create).skip is None


def test_whole_and_auto_have_the_models_own_bits():
    for init in ("whole", "auto"):
        found = whole(lambda init=init: by_name.build(init, small_gpt, 0)[0])
        for (_, value), (_, expected) in zip(named(found), named(whole(small_gpt)), strict=True):
            assert torch.equal(value, expected)
