"""Optimizers: their options, their step and their state; and the learning rate."""

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from slurm_job_kit.jobs.contract.spec import Train
from slurm_job_kit.trainer.data.batches import TrainingLength
from slurm_job_kit.trainer.errors import UserCodeError, UserError
from slurm_job_kit.trainer.model import optim

OFF = torch.amp.GradScaler("cpu", enabled=False)


def length_of(total_steps, steps_per_epoch=10):
    return TrainingLength(total_steps, steps_per_epoch, total_steps // steps_per_epoch, 8, 80)


def rates_of(train, total_steps):
    lr_at = optim.schedule(train, length_of(total_steps))
    return [lr_at(step) for step in range(total_steps)]


WARM_UP = [0.1, 0.2, 0.3, 0.4]


@pytest.mark.parametrize(
    ("train", "num_steps", "expected"),
    [
        ({}, 104, [0.4] * 104),
        ({"schedule": "cosine", "warmup_steps": 4}, 104, [*WARM_UP, 0.4, *[None] * 49, 0.2]),
    ],
)
def test_the_learning_rate_follows_its_schedule(train, num_steps, expected):
    rates = rates_of(Train(lr=0.4, **train), num_steps)
    known = [(rate, each) for rate, each in zip(rates, expected, strict=False) if each is not None]
    assert [rate for rate, _ in known] == pytest.approx([each for _, each in known])
    assert "cosine" not in train.values() or 0 < rates[-1] < 0.001


def halves(step, total_steps, base=2.0):
    return np.float64(base) ** -(step * 4 // total_steps)


def test_a_schedule_of_the_user_gives_a_factor_after_the_warm_up():
    train = Train(lr=0.8, schedule=f"{__name__}:halves", warmup_steps=2)
    assert rates_of(train, 8) == pytest.approx([0.4, 0.8, 0.4, 0.4, 0.2, 0.2, 0.1, 0.1])
    with_args = dataclasses.replace(train, schedule_args={"base": 1.0})
    assert rates_of(with_args, 8)[1:] == [0.8] * 7
    assert {type(rate) for rate in rates_of(train, 8)} == {float}  # a checkpoint holds no other


def bad(step, total_steps, value):
    return value


@pytest.mark.parametrize("value", [-0.5, float("nan"), float("inf"), "0.1", None, torch.ones(1)])
def test_a_schedule_that_gives_no_factor_is_refused_with_step_and_value(value):
    name = f"{__name__}:bad"
    lr_at = optim.schedule(Train(schedule=name, schedule_args={"value": value}), length_of(8))
    words = f"train.schedule: {name} returns {value!r} for step 3: return a factor of train.lr, 0"
    with pytest.raises(UserError) as caught:
        lr_at(3)
    assert words in str(caught.value)


def test_an_error_of_a_schedule_has_its_key_and_traceback():
    lr_at = optim.schedule(Train(schedule=f"{__name__}:halves"), length_of(0))
    with pytest.raises(
        UserCodeError, match=f"^train.schedule {__name__}:halves: ZeroDiv"
    ) as caught:
        lr_at(0)
    assert "step * 4 // total_steps" in caught.value.trace


def test_vectors_get_no_weight_decay_unless_asked_for():
    matrices, vectors = optim.create(nn.Linear(3, 2), Train(weight_decay=0.1)).param_groups
    assert (matrices["weight_decay"], vectors["weight_decay"]) == (0.1, 0.0)
    assert [parameter.ndim for parameter in (*matrices["params"], *vectors["params"])] == [2, 1]
    train = Train(weight_decay=0.1, weight_decay_on="all")
    (both,) = optim.create(nn.Linear(3, 2), train).param_groups
    assert both["weight_decay"] == 0.1 and len(both["params"]) == 2


@pytest.mark.parametrize("name", ["sgd", "adamw", "torch.optim:NAdam", f"{__name__}:Signed"])
def test_options_of_the_spec_reach_every_optimizer(name):
    own: dict[str, dict[str, Any]] = {"sgd": {"maximize": True}, "adamw": {"amsgrad": True}}
    args = own.get(name, {"eps": 1e-3})
    train = Train(optimizer=name, optimizer_args=args, lr=0.3, weight_decay=0.1, nesterov=True)
    if name == "sgd":
        args = {**args, "momentum": train.momentum, "nesterov": True}
    optimizer = optim.create(nn.Linear(3, 2), train)
    for group, decay in zip(optimizer.param_groups, (0.1, 0.0), strict=True):
        assert (group["lr"], group["weight_decay"]) == (0.3, decay)
        assert all(group[key] == value for key, value in args.items())


class Signed(torch.optim.Optimizer):
    """A user's optimizer, whose state has other values than tensors."""

    def __init__(self, params, lr, eps=0.0):
        super().__init__(params, {"lr": lr, "eps": eps})

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["count"] = state.get("count", 0) + 1
                state["norms"] = [*state.get("norms", []), 1.0]
                parameter.data -= group["lr"] / state["count"] * parameter.grad.sign()


@pytest.mark.parametrize(
    ("name", "args", "words"),
    [
        ("sgd", {"betas": [0.9, 0.95]}, r"train.optimizer_args: sgd: .*argument 'betas'"),
        ("adamw", {"eps": -1.0}, "train.optimizer_args: adamw: Invalid epsilon value: -1.0"),
        ("torch.optim:NAdam", {"x": 1}, "train.optimizer_args: NAdam.* argument 'x'"),
        ("lion", {}, "train.optimizer: 'lion' is not a package.module:name"),
        (f"{__name__}:no_optimizer", {}, "no_optimizer returns a int, not a torch.optim.Optimizer"),
    ],
)
def test_an_optimizer_that_cannot_be_made_names_its_key(name, args, words):
    with pytest.raises(UserError, match=words):
        optim.create(nn.Linear(3, 2), Train(optimizer=name, optimizer_args=args))


def no_optimizer(params, lr):
    return 3


def first_group(params, lr):
    return torch.optim.SGD(params[0]["params"], lr=lr)


def copies(params, lr):
    return torch.optim.SGD([each.detach().clone() for each in params[0]["params"]], lr=lr)


@pytest.mark.parametrize(("name", "missing"), [("first_group", 1), ("copies", 2)])
def test_an_optimizer_that_leaves_out_trained_parameters_is_refused(name, missing):
    module = nn.Sequential(nn.Linear(3, 2))
    module.register_parameter("frozen", nn.Parameter(torch.ones(3), requires_grad=False))
    first = {1: "0.bias", 2: "0.weight"}[missing]
    words = f"{name} leaves out {missing} of 2 trained parameters, the first is {first}\n.*: give"
    with pytest.raises(UserError, match=words):
        optim.create(module, Train(optimizer=f"{__name__}:{name}"))


def with_numpy(params, lr):
    return torch.optim.SGD(params, lr=lr, momentum=np.float64(0.5))


def test_an_optimizer_that_no_checkpoint_can_hold_is_refused_at_the_start():
    name = f"{__name__}:with_numpy"
    words = rf"train.optimizer: state_dict\(\) of {name} holds more than .*\n.* numbers of NumPy"
    with pytest.raises(UserError, match=words):
        optim.create(nn.Linear(3, 2), Train(optimizer=name))


def two_rates(params, lr):
    params[1]["lr"] = lr / 4
    return torch.optim.SGD(params, lr=lr)


def test_groups_of_a_users_optimizer_keep_the_ratio_of_their_learning_rates_over_a_resume():
    train = Train(optimizer=f"{__name__}:two_rates", lr=0.5)
    optimizer = optim.create(nn.Linear(3, 2), train)
    resumed = optim.create(nn.Linear(3, 2), train)
    optim.load(resumed, optimizer.state_dict())
    for each in (optimizer, resumed):
        for lr in (0.5, 0.2):
            optim.set_lr(each, lr)
            assert [group["lr"] for group in each.param_groups] == [lr, lr / 4]


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_optimizers_run_fused_unless_a_parameter_is_complex(optimizer):
    for dtype, is_fused in ((torch.float32, True), (torch.complex64, False)):
        module = nn.Linear(3, 2, dtype=dtype)
        groups = optim.create(module, Train(optimizer=optimizer)).param_groups
        assert all(bool(group["fused"]) is is_fused for group in groups)


def fed(module, optimizer, train, seed):
    torch.manual_seed(seed)
    for parameter in module.parameters():
        parameter.grad = torch.rand_like(parameter)
    optim.clip_and_step(optimizer, OFF, [*module.parameters()], train)


@pytest.mark.parametrize("name", ["sgd", "adamw", f"{__name__}:Signed"])
def test_a_loaded_state_of_any_values_and_memory_format_continues_bitwise(name):
    train = Train(optimizer=name)
    module = nn.Conv2d(4, 3, 2)
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # not in the stub
    optimizer = optim.create(module, train)
    fed(module, optimizer, train, 1)
    other = copy.deepcopy(module)
    state = copy.deepcopy(optimizer.state_dict())
    for values in state["state"].values():
        tensors = {key: value for key, value in values.items() if isinstance(value, torch.Tensor)}
        values.update({key: value.contiguous() for key, value in tensors.items()})
    restored = optim.create(other, train)
    optim.load(restored, state)
    fed(module, optimizer, train, 2)
    fed(other, restored, train, 2)
    assert all(map(torch.equal, module.parameters(), other.parameters()))


def test_options_that_a_resume_changes_count_from_the_load_on():
    module = nn.Linear(3, 2)
    saved = optim.create(module, Train(weight_decay=0.1, momentum=0.0)).state_dict()
    optimizer = optim.create(module, Train(weight_decay=0.2, momentum=0.8))
    optim.load(optimizer, saved)
    matrices = optimizer.param_groups[0]
    assert (matrices["weight_decay"], matrices["momentum"]) == (0.2, 0.8)
    assert optimizer.state[module.weight]["momentum_buffer"].abs().max() == 0


def test_a_state_of_other_parameter_groups_is_refused_with_the_key():
    saved = optim.create(nn.Linear(3, 2), Train(weight_decay=0.1)).state_dict()
    words = r"groups of \[1, 1\] parameters, this start has \[2\]\n  hint: set train.weight_decay_"
    with pytest.raises(UserError, match=words):
        train = Train(weight_decay=0.1, weight_decay_on="all")
        optim.check_groups(optim.create(nn.Linear(3, 2), train), saved)


def with_own(groups, lr):
    """An optimizer with a parameter that is not the model's."""
    return torch.optim.SGD([*groups, {"params": [nn.Parameter(torch.ones(()))]}], lr=lr)


def test_gradients_of_a_users_optimizer_are_all_dropped():
    train, module = Train(optimizer=f"{__name__}:with_own"), nn.Linear(1, 1)
    optimizer = optim.create(module, train)
    (own,) = optimizer.param_groups[-1]["params"]
    own.grad = torch.ones(())
    fed(module, optimizer, train, 1)
    assert own.grad is None and module.weight.grad is None
