"""Which modules of a model are blocks, and what is done with each."""

import dataclasses
import functools

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.utils import counters

from slurm_job_kit.jobs.contract.spec import STRATEGIES, Train
from slurm_job_kit.trainer.errors import UserError
from slurm_job_kit.trainer.model.models import MiniResNet, mlp
from slurm_job_kit.trainer.plugins.sharded import blocks
from slurm_job_kit.trainer.plugins.zoo.gpt import GPT
from slurm_job_kit.trainer.plugins.zoo.models import resnet18
from slurm_job_kit.trainer.strategy import create
from tests.core.ranks import CPU, place_of

pytestmark = pytest.mark.long  # compiles blocks


def gpt():
    torch.manual_seed(0)
    return GPT(vocab_size=11, block_size=5, n_layer=3, n_head=2, n_embd=6, dropout=0.2)


def names(module, *classes):
    blocks_found = blocks.find(module, classes)
    return [name for name, each in module.named_modules() if each in blocks_found]


def test_the_children_of_the_longest_uniform_list_are_the_blocks():
    assert names(gpt()) == ["transformer.h.0", "transformer.h.1", "transformer.h.2"]
    assert names(MiniResNet(1, 10)) == [f"blocks.{index}" for index in range(6)]


def test_modules_of_the_class_outside_of_the_list_are_blocks_too():
    stages = [f"layer{stage}.{index}" for stage in range(1, 5) for index in (0, 1)]
    assert names(resnet18(3, 10)) == stages


def test_a_list_of_several_classes_or_without_parameters_gives_no_block():
    assert names(mlp(3, 2)) == []
    assert names(nn.Sequential(nn.ReLU(), nn.ReLU())) == []
    assert names(nn.ModuleList([nn.Linear(2, 2)])) == []


def test_of_two_lists_the_longest_wins_and_of_equal_ones_the_first():
    lists = nn.ModuleDict(
        {
            "two": nn.ModuleList([nn.Bilinear(1, 1, 1), nn.Bilinear(1, 1, 1)]),
            "three": nn.ModuleList([nn.Linear(1, 1) for _ in range(3)]),
            "also": nn.ModuleList([nn.Conv1d(1, 1, 1) for _ in range(3)]),
        }
    )
    assert names(lists) == ["three.0", "three.1", "three.2"]


def test_classes_can_be_named_and_no_block_is_inside_of_another():
    assert names(gpt(), "Attention") == [f"transformer.h.{index}.attn" for index in range(3)]
    assert names(gpt(), "Block", "Attention") == [f"transformer.h.{index}" for index in range(3)]


def test_an_unknown_class_is_refused_with_the_ones_there_are():
    words = "^train.shard_modules: the model has no Blok\n  hint: its classes are Attention, Block"
    with pytest.raises(UserError, match=words):
        blocks.find(gpt(), ["Blok"])


def stepped(module, inputs, train):
    """Weights, buffers and gradients after two passes of a model set up as the spec says."""
    blocks.set_up(module, train)
    for _ in range(2):
        torch.manual_seed(1)
        module(inputs).float().square().sum().backward()
    gradients = {name: each.grad for name, each in module.named_parameters()}
    return {**module.state_dict(), **{f"gradient of {key}": gradients[key] for key in gradients}}


def images():
    return torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def resnet():
    torch.manual_seed(0)
    return MiniResNet(1, 3, channels=(5, 7))


TOKENS = torch.arange(10).view(2, 5)


@pytest.mark.parametrize("kind", ["gpt", "resnet"])
def test_activation_checkpointing_changes_no_bit_no_buffer_and_no_name(kind):
    model, inputs = (gpt, TOKENS) if kind == "gpt" else (resnet, images())
    plain = stepped(model(), inputs, Train())
    again = stepped(model(), inputs, Train(activation_checkpointing=True))
    assert list(plain) == list(again)
    assert all(torch.equal(plain[name], again[name]) for name in plain)


def test_activation_checkpointing_computes_each_block_twice_in_training_only():
    module, calls = gpt(), []
    for block in module.transformer.h:
        block.attn.register_forward_hook(lambda *_: calls.append(1))
    blocks.set_up(module, Train(activation_checkpointing=True))
    with torch.no_grad():
        module(TOKENS)
    assert len(calls) == 3
    module(TOKENS).sum().backward()
    assert len(calls) == 3 + 2 * 3


# torch 2.13's compiler reads .grad of what no block is a leaf of.
OWN_WARNING = "ignore:The .grad attribute of a Tensor that is not a leaf"


@pytest.fixture
def compiler(monkeypatch):
    """Compiles without a C++ compiler, which takes seconds; returns torch's statistics."""
    compiled = functools.partial(torch.compile, backend="aot_eager")
    monkeypatch.setattr(torch, "compile", compiled)
    torch._dynamo.reset()
    counters.clear()
    yield counters["stats"]
    torch._dynamo.reset()


COMPILED = [
    Train(compile="blocks"),
    Train(compile=True, strategy="fsdp"),
    Train(compile="blocks", activation_checkpointing=True),
]


@pytest.mark.filterwarnings(OWN_WARNING)
@pytest.mark.parametrize("train", COMPILED)
def test_blocks_of_one_shape_are_compiled_once_and_keep_their_names(compiler, train):
    compiled, plain = stepped(gpt(), TOKENS, train), gpt().state_dict()
    assert compiler["unique_graphs"] == 1
    assert list(compiled)[: len(plain)] == list(plain)


@pytest.mark.filterwarnings(OWN_WARNING)
def test_compiled_blocks_with_checkpointing_count_each_batch_once(compiler):
    train = Train(compile="blocks", activation_checkpointing=True)
    compiled, plain = stepped(resnet(), images(), train), stepped(resnet(), images(), Train())
    for name in plain:
        assert torch.allclose(plain[name], compiled[name], rtol=1e-4, atol=1e-5), name
    # Two of the four blocks have the same shapes.
    assert compiler["unique_graphs"] == 3


@pytest.mark.filterwarnings(OWN_WARNING)
def test_more_shapes_than_torchs_limit_are_all_compiled(compiler):
    widths = range(1, 10)  # the limit is 8
    module = nn.Sequential(*[nn.Sequential(nn.Linear(3, n), nn.Linear(n, 3)) for n in widths])
    stepped(module, torch.ones(2, 3), Train(compile="blocks"))
    assert compiler["unique_graphs"] == len(widths)


def check(module, train, num_shards):
    create(train, place_of(0, num_shards), CPU).check(module)


@pytest.mark.parametrize(
    ("train", "key"),
    [
        (Train(activation_checkpointing=True), "activation_checkpointing"),
        (Train(compile="blocks"), "compile blocks"),
    ],
)
def test_a_model_without_blocks_is_refused_where_they_are_needed(train, key):
    with pytest.raises(UserError, match=f"train.{key} needs blocks.*\n.* train.shard_modules"):
        check(mlp(3, 2), train, num_shards=1)
    check(mlp(3, 2), dataclasses.replace(train, shard_modules=["Linear"]), num_shards=1)


def refused(module, num_shards=2):
    with pytest.raises(UserError) as caught:
        check(module, Train(strategy="fsdp", model="a:b"), num_shards)
    return str(caught.value)


def test_more_shards_than_rows_are_refused():
    words = "4 shards are too many for train.model a:b: the longest parameter has 5 rows"
    assert words in refused(nn.Linear(2, 5), num_shards=4)  # torch.chunk makes 2 + 2 + 1
    check(nn.Linear(2, 5), Train(strategy="fsdp"), 3)
    check(nn.Linear(2, 1), Train(strategy="fsdp"), 1)


def test_blocks_that_share_a_parameter_are_refused_by_fsdp():
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    module[1].weight = module[0].weight
    assert "0 is a block and shares a parameter with 1, which is outside of it" in refused(module)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_rank_has_no_wrapper_and_divides_nothing(strategy):
    made = create(Train(strategy=strategy), place_of(), CPU)
    module = nn.Linear(2, 1)
    assert made.wrap(module) is module
    assert (made.sharding.num_shards, made.sharding.rank) == (1, 0)


@pytest.mark.parametrize(
    ("strategy", "size", "local", "expected"),
    [("fsdp", None, 2, 6), ("hsdp", None, 3, 3), ("hsdp", 2, 3, 2)],
)
def test_the_number_of_shards_follows_from_the_ranks(strategy, size, local, expected):
    train = Train(strategy=strategy, shard_size=size)
    assert create(train, place_of(0, 6, local), CPU).sharding.num_shards == expected


def test_groups_that_do_not_fit_the_ranks_are_refused():
    with pytest.raises(UserError, match="6 ranks cannot be divided into groups of 4"):
        create(Train(strategy="hsdp", shard_size=4), place_of(0, 6, 2), CPU)


@pytest.mark.parametrize("name", ["torch.optim:Muon", "torch.optim:Adafactor", "mine:LARS"])
def test_an_optimizer_that_needs_whole_matrices_is_refused_where_ranks_have_rows(name):
    with pytest.raises(UserError, match="take train.strategy ddp, or an optimizer that treats"):
        create(Train(optimizer=name, strategy="fsdp"), place_of(0, 2), CPU)
    create(Train(optimizer="torch.optim:NAdam", strategy="fsdp"), place_of(0, 2), CPU)
