"""Model, wrapper, optimizer and data at the start of one or two ranks."""

import dataclasses
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from slurm_job_kit.jobs.contract.spec import Launch, Slurm, Spec, Train
from slurm_job_kit.trainer.data.sources import Samples
from slurm_job_kit.trainer.errors import CodeError, UserCodeError, UserError
from slurm_job_kit.trainer.model import build
from slurm_job_kit.trainer.model.training_data import build_data, check_same_data
from slurm_job_kit.trainer.process import context
from slurm_job_kit.trainer.user_code import user_code
from tests.core import ranks
from tests.core.ranks import CPU, context_of, place_of
from tests.parts import IMAGES, TABLE

REPOSITORY = Path(__file__).resolve().parents[3]
MLP = Train(**TABLE, micro_batch_size=8)


pytestmark = pytest.mark.usefixtures("process_group")


class Unsteady(nn.Module):
    """Has a parameter that no score depends on."""

    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(30, 2), nn.Linear(30, 2)

    def forward(self, x):
        return self.used(x)


@pytest.fixture
def job_of(tmp_path):
    """A job of one rank with these hyperparameters."""

    def context(train, launch=None, world_size=1):
        spec = Spec(train=train, launch=launch or Launch())
        return context_of(tmp_path, spec, place_of(0, world_size))

    return context


@pytest.fixture
def built(job_of):
    """(data, replica) of hyperparameters."""

    def build_both(train, world_size=1):
        context = job_of(train, world_size=world_size)
        build.set_up_torch(context)
        data = build_data(context)
        return data, build.build_replica(context, data)

    return build_both


def test_torch_is_set_up_as_the_spec_says(job_of):
    build.set_up_torch(job_of(Train(deterministic=False), Launch(threads_per_rank=2)))
    assert torch.get_num_threads() == 2
    assert not torch.are_deterministic_algorithms_enabled() and torch.backends.cudnn.benchmark
    build.set_up_torch(job_of(Train()))
    assert torch.get_num_threads() == 1
    assert torch.are_deterministic_algorithms_enabled() and not torch.backends.cudnn.benchmark


def test_options_of_the_spec_reach_ddp(built):
    ddp = built(MLP, world_size=2)[1].wrapped
    assert (ddp.bucket_bytes_cap, ddp.find_unused_parameters) == (25 * 2**20, False)
    assert (ddp.static_graph, ddp.gradient_as_bucket_view) == (False, True)
    options: dict[str, Any] = {"find_unused_parameters": True, "gradient_as_bucket_view": False}
    ddp = built(dataclasses.replace(MLP, bucket_cap_mb=3, **options), world_size=2)[1].wrapped
    assert (ddp.bucket_bytes_cap, ddp.find_unused_parameters) == (3 * 2**20, True)
    assert (ddp.static_graph, ddp.gradient_as_bucket_view) == (False, False)
    static = dataclasses.replace(MLP, static_graph=True, **options)
    replica = built(static, world_size=2)[1]
    assert replica.wrapped.static_graph
    with pytest.raises(UserError, match="DDP loses accumulated gradients"):
        replica.strategy.accumulate(replica.wrapped, is_last=False)


def test_the_throw_away_pass_changes_neither_weights_nor_buffers_nor_gradients(built):
    train = Train(**IMAGES, micro_batch_size=4)
    replica = built(train)[1]
    norms = [module for module in replica.module.modules() if isinstance(module, nn.BatchNorm2d)]
    assert all(norm.num_batches_tracked == 0 for norm in norms)
    assert all(norm.running_var is not None and norm.running_var.eq(1).all() for norm in norms)
    assert all(parameter.grad is None for parameter in replica.module.parameters())
    again = built(train)[1]
    for name, value in replica.module.state_dict().items():
        assert torch.equal(value, again.module.state_dict()[name])


class Counted(nn.Linear):
    """Has a state besides tensors."""

    count: object = 3

    def get_extra_state(self):
        return {"count": self.count}

    def set_extra_state(self, state):
        self.count = state["count"]


def test_a_model_may_have_any_state_that_a_checkpoint_holds(built, monkeypatch):
    train = dataclasses.replace(
        MLP, model=f"{__name__}:Counted", model_args={"in_features": 30, "out_features": 2}
    )
    assert built(train)[1].module.state_dict()["_extra_state"] == {"count": 3}
    monkeypatch.setattr(Counted, "count", {1, 2})
    words = rf"^train.model: state_dict\(\) of {__name__}:Counted holds more than tensors, num"
    with pytest.raises(UserError, match=words):
        built(train)


def shuffled():
    """Samples in an order that three generators decide."""
    order = torch.randperm(64).tolist()
    random.shuffle(order)
    inputs = torch.tensor(np.random.permutation(order)).float()[:, None].expand(-1, 30)
    return Samples(inputs, (inputs[:, 0] > 30).long()), None


drawn: list[tuple[float, ...]] = []


def draws():
    return random.random(), float(np.random.rand()), float(torch.rand(1))


def downloaded():
    """Data that only the first attempt downloads, by code that draws; a later one reads them."""
    if not drawn:
        draws()
    return shuffled()


def drawing():
    """A transform that draws when it is made."""
    drawn.append(draws())
    return lambda inputs, _: inputs


class Drawing(nn.Linear):
    """A layer with random numbers that no checkpoint has."""

    def __init__(self):
        super().__init__(30, 2)
        drawn.append(draws())


def test_draws_follow_from_the_seed_and_not_from_those_of_other_parts(built):
    names = {"dataset": "downloaded", "transform": "drawing", "model": "Drawing"}
    own: dict[str, Any] = {key: f"{__name__}:{name}" for key, name in names.items()}
    firsts = [
        built(dataclasses.replace(MLP, **own, seed=seed))[0].train_batches.example()[0][0, 0].item()
        for seed in (0, 0, 0, 1)
    ]
    assert firsts[1] == firsts[2] != firsts[3]
    assert drawn[:2] == drawn[2:4] == drawn[4:6] != drawn[6:]


def test_after_the_throw_away_pass_the_next_forward_lays_out_the_gradient_buckets(built):
    ddp = built(MLP, world_size=2)[1].wrapped
    assert not nn.parallel.DistributedDataParallel(ddp.module).reducer._rebuild_buckets()
    assert ddp.reducer._rebuild_buckets()


@pytest.mark.parametrize("world_size", [1, 2])
def test_channels_last_is_the_format_of_weights_momentum_and_gradients(built, world_size):
    train = Train(**IMAGES, micro_batch_size=4, channels_last=True)
    data, replica = built(train, world_size)
    inputs, labels = next(iter(data.train_batches.micro_batches(0)))
    nn.functional.cross_entropy(replica.wrapped(inputs), labels).backward()
    weight = replica.module.blocks[0].conv1.weight
    momentum = replica.optimizer.state[weight]["momentum_buffer"]
    for tensor in (weight, weight.grad, momentum):
        assert tensor.is_contiguous(memory_format=torch.channels_last)
        assert tensor.stride() == weight.stride()


def test_unused_parameters_are_refused_with_the_key_that_allows_them(built):
    train = dataclasses.replace(MLP, model=f"{__name__}:Unsteady")
    with pytest.raises(UserError, match=r"2 parameters got no gradient, .* unused.weight\n.*: set"):
        built(train)
    assert built(dataclasses.replace(train, find_unused_parameters=True))


OWN = f"{__name__}:Own"


class Own(nn.Module):
    """A user's model with a mistake."""

    def __init__(self, mistake):
        super().__init__()
        self.mistake = mistake
        self.linear = nn.Linear(7 if mistake == "shape" else 30, 2)
        if mistake == "creation":
            raise RuntimeError("no such thing\nas this")
        if mistake == "frozen":
            self.requires_grad_(False)

    def forward(self, x):
        return self.linear(x).detach()


@pytest.mark.parametrize(
    ("mistake", "words", "line"),
    [
        ("frozen", f"model {OWN} has no trainable parameter: add one, or set requires_grad of", ""),
        ("detached", "objective classification: the loss depends on no trainable parameter of", ""),
        ("creation", f"model {OWN}: RuntimeError: no such thing", "raise RuntimeError"),
        ("shape", f"model {OWN}: RuntimeError: ", "return self.linear(x)"),
    ],
)
def test_a_model_that_fails_or_does_not_fit_is_refused_with_its_line(built, mistake, words, line):
    train = dataclasses.replace(MLP, model=OWN, model_args={"mistake": mistake})
    with pytest.raises(UserError) as caught:
        built(train)
    assert str(caught.value).startswith(f"train.{words}")
    assert isinstance(caught.value, UserCodeError) is bool(line)
    assert line in getattr(caught.value, "trace", "")


def unreadable(kind):
    raise {"bug": KeyError, "disk": OSError}[kind](5, "a planted error")


@pytest.mark.parametrize("key", ["dataset", "transform"])
def test_an_exception_of_a_callable_is_reported_with_its_key(built, key):
    name = f"{__name__}:unreadable"
    for kind, is_mistake in (("bug", True), ("disk", False)):
        changes: dict[str, Any] = {key: name, f"{key}_args": {"kind": kind}}
        with pytest.raises(CodeError, match=f"^train.{key} {name}: .*a planted error") as caught:
            built(dataclasses.replace(MLP, **changes))
        assert isinstance(caught.value, UserError) is is_mistake


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("none left"),
        torch.AcceleratorError("CUDA error: device-side assert triggered"),
        RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed"),
    ],
)
def test_errors_of_the_machine_are_not_errors_of_the_users_code(error):
    with pytest.raises(type(error)) as caught, user_code("train.model", "x"):
        raise error
    assert caught.value is error


def test_an_unreadable_file_is_not_an_error_of_the_users_code():
    with pytest.raises(CodeError) as caught, user_code("train.dataset", "x"):
        raise ValueError("no header") from OSError("stale")
    assert not isinstance(caught.value, UserError)
    expected = "train.dataset x: ValueError: no header\nfirst cause: OSError: stale"
    assert str(caught.value) == expected


def test_what_needs_gpus_is_refused_on_a_cpu(built):
    with pytest.raises(UserError, match="train.model .*SyncBatchNorm expected .* to be on GPU"):
        built(Train(sync_batchnorm=True))


def test_a_missing_gpu_is_named_with_both_sides():
    device, reason = context.choose_device(place_of())
    assert device == CPU
    context.check_device(0, "", device, reason)
    slurm = Slurm(gpus_per_node=4)
    with pytest.raises(UserError, match=r"gpus_per_node is 4, but torch \S+ sees 0 GPUs for 1 ran"):
        context.check_device(slurm.num_gpus, slurm.gpus_are, device, reason)


def anchored(groups, lr):
    """An optimizer that keeps the weights that it finds, as one that pulls towards them does."""
    optimizer = torch.optim.SGD(groups, lr)
    values = [value.detach().clone() for group in groups for value in group["params"]]
    optimizer.anchors = values  # type: ignore[attr-defined]
    return optimizer


def test_an_optimizer_of_the_user_finds_the_initial_weights_in_every_attempt(job_of):
    spec = dataclasses.replace(MLP, optimizer=f"{__name__}:anchored")
    anchors = []
    for will_load in (False, True):
        at = job_of(spec)
        optimizer: Any = build.build_replica(at, build_data(at), will_load).optimizer
        anchors.append(optimizer.anchors)
    assert all(map(torch.equal, *anchors))


def with_other_data(folder, rank):
    ranks.join(folder, rank, 2)
    check_same_data("x", {"training samples": 50, "classes": 3}, CPU)
    with pytest.raises(UserError) as caught:
        check_same_data("x", {"training samples": 50 - rank, "classes": 3}, CPU)
    dist.barrier()
    return str(caught.value)


def test_ranks_that_see_different_data_are_named(tmp_path):
    words = (
        "train.dataset x differs between ranks: rank 0 sees 50 training samples, rank 1 49: give "
        "all nodes the same files"
    )
    assert ranks.results(with_other_data, tmp_path, 2) == [words] * 2
