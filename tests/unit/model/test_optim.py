"""Optimizers against the formulas of their papers, their step, and the learning rate."""

import copy

import pytest
import torch
from torch import nn

from jobs.spec import Train
from trainer.data.batches import TrainingLength
from trainer.model import optim

OFF = torch.amp.GradScaler("cpu", enabled=False)


def length_of(total_steps, steps_per_epoch=10):
    return TrainingLength(total_steps, steps_per_epoch, total_steps // steps_per_epoch, 8, 80)


def stepped(train, gradients, value=1.0):
    """A parameter [1, 1] after a step with each of the gradients."""
    module = nn.Linear(1, 1, bias=False)
    nn.init.constant_(module.weight, value)
    optimizer = optim.create(module, train)
    for gradient in gradients:
        module.weight.grad = torch.tensor([[gradient]])
        optim.clip_and_step(optimizer, OFF, module.parameters(), train)
    return module.weight.item()


def test_the_learning_rate_warms_up_and_falls_to_zero():
    train = Train(lr=0.4, warmup_steps=4, schedule="cosine")
    rates = [optim.lr_at(step, length_of(104), train) for step in range(104)]
    assert rates[:5] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])
    assert rates[54] == pytest.approx(0.2)
    assert 0 < rates[-1] < 0.001
    assert optim.lr_at(50, length_of(104), Train(lr=0.4)) == 0.4


def test_the_step_schedule_multiplies_the_learning_rate_at_epochs():
    train = Train(lr=0.4, schedule="step", lr_milestones=[2, 4], lr_gamma=0.5, warmup_steps=2)
    rates = [optim.lr_at(step, length_of(60), train) for step in range(60)]
    assert rates[:2] == pytest.approx([0.2, 0.4])
    assert rates[2:20] == [0.4] * 18
    assert rates[20:40] == [0.2] * 20
    assert rates[40:] == [0.1] * 20


def test_vectors_get_no_weight_decay():
    matrices, vectors = optim.create(nn.Linear(3, 2), Train(weight_decay=0.1)).param_groups
    assert (matrices["weight_decay"], vectors["weight_decay"]) == (0.1, 0.0)


def test_sgd_has_momentum_and_weight_decay():
    train = Train(lr=0.1, momentum=0.9, weight_decay=0.01)
    velocity, weight = 0.0, 1.0
    for gradient in (2.0, -1.0, 0.5):
        velocity = 0.9 * velocity + gradient + 0.01 * weight
        weight -= 0.1 * velocity
    assert stepped(train, (2.0, -1.0, 0.5)) == pytest.approx(weight, rel=1e-6)


def test_nesterov_looks_ahead():
    train = Train(lr=0.1, momentum=0.9, nesterov=True)
    velocity, weight = 0.0, 1.0
    for gradient in (2.0, -1.0):
        velocity = 0.9 * velocity + gradient
        weight -= 0.1 * (gradient + 0.9 * velocity)
    assert stepped(train, (2.0, -1.0)) == pytest.approx(weight, rel=1e-6)


def test_adamw_decays_weights_apart_from_its_step():
    train = Train(optimizer="adamw", lr=0.1, weight_decay=0.5)
    assert stepped(train, (3.0,)) == pytest.approx(1 - 0.1 * 0.5 - 0.1, rel=1e-6)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_optimizers_run_fused(optimizer):
    groups = optim.create(nn.Linear(3, 2), Train(optimizer=optimizer)).param_groups
    assert all(group["fused"] for group in groups)


def test_all_gradients_together_are_clipped_to_the_norm_and_then_dropped():
    train = Train(lr=1.0, momentum=0.0, grad_clip_norm=1.0)
    module = nn.Linear(1, 1)
    before = [parameter.detach().clone() for parameter in module.parameters()]
    optimizer = optim.create(module, train)
    module.weight.grad, module.bias.grad = torch.tensor([[3.0]]), torch.tensor([4.0])
    optim.clip_and_step(optimizer, OFF, module.parameters(), train)
    moved = [old - new for old, new in zip(before, module.parameters(), strict=True)]
    assert [value.item() for value in moved] == pytest.approx([0.6, 0.8], rel=1e-5)
    assert module.weight.grad is None and module.bias.grad is None
    assert stepped(train, (0.5,)) == 0.5


def test_a_parameter_may_get_its_first_gradient_late():
    first, late = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))
    module = nn.ParameterList([first, late])
    train = Train(lr=0.5, momentum=0.9)
    optimizer = optim.create(module, train)
    first.grad = torch.ones(2, 2)
    optim.clip_and_step(optimizer, OFF, module.parameters(), train)
    late.grad = torch.ones(2, 2)
    optim.clip_and_step(optimizer, OFF, module.parameters(), train)
    assert torch.equal(late, torch.full((2, 2), 0.5))


def fed(module, optimizer, train, seed):
    torch.manual_seed(seed)
    for parameter in module.parameters():
        parameter.grad = torch.rand_like(parameter)
    optim.clip_and_step(optimizer, OFF, module.parameters(), train)


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_a_loaded_state_continues_bitwise_from_any_memory_format(name):
    train = Train(optimizer=name)
    module = nn.Conv2d(4, 3, 2)
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # not in the stub
    optimizer = optim.create(module, train)
    fed(module, optimizer, train, 1)
    other = copy.deepcopy(module)
    state = copy.deepcopy(optimizer.state_dict())
    for values in state["state"].values():
        values.update({key: value.contiguous() for key, value in values.items()})
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
