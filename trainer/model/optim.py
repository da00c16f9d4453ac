"""The optimizer and its step, and the learning rate as a pure function of the step."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from ..contract import OPTIMIZERS, Train
from ..data.batches import TrainingLength
from ..data.sources import check_plain
from ..errors import UserError
from ..parts import parts
from ..user_code import call, user_code
from ..user_code import load as load_code

LR_RATIO = "lr_ratio"  # of a parameter group: its learning rate divided by train.lr

Named = Sequence[tuple[str, nn.Parameter]]
Factor = Callable[[int, TrainingLength, Train], float]  # of train.lr in a step after the warm-up


def create(module: nn.Module, train: Train, trained: Named | None = None) -> torch.optim.Optimizer:
    """Return the optimizer of `train`; the loop sets its learning rates before each step.

    trained: `Strategy.trained_parameters` of the model; all its parameters that train by default.
    A callable of the user gets the parameter groups, `lr` and train.optimizer_args.
    Raises: UserError where it returns no optimizer, or one that leaves out trained parameters.
    """
    if trained is None:
        trained = [(name, each) for name, each in module.named_parameters() if each.requires_grad]
    groups = _groups([each for _, each in trained], train)
    args = {**train.optimizer_args, "lr": train.lr}
    if train.optimizer in OPTIMIZERS:
        # fused is not the default on the CPU; it makes the optimizer's part 3 to 6 times faster.
        # torch refuses it for complex parameters.
        options: dict[str, Any] = {"fused": all(each.is_floating_point() for _, each in trained)}
        kind: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW
        if train.optimizer == "sgd":
            kind = torch.optim.SGD
            options |= {"momentum": train.momentum, "nesterov": train.nesterov}
        try:
            optimizer = kind(groups, **{**options, **args})
        except (RuntimeError, TypeError, ValueError) as error:
            raise UserError(f"train.optimizer_args: {train.optimizer}: {error}") from error
        if isinstance(optimizer, torch.optim.SGD):
            _begin_momentum(optimizer)
        return optimizer
    with user_code("train.optimizer", train.optimizer):
        function = load_code("train.optimizer", train.optimizer)
        own: torch.optim.Optimizer = call("train.optimizer", function, args, groups)
        _check(own, trained, train.optimizer)
    for group in own.param_groups:
        if (lr := float(group.get("lr", train.lr))) != train.lr:
            group[LR_RATIO] = lr / train.lr
    return own


def _groups(parameters: list[nn.Parameter], train: Train) -> list[dict[str, Any]]:
    if train.weight_decay_on == "all":
        return [{"params": parameters, "weight_decay": train.weight_decay}]
    return [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": train.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]


def _check(optimizer: object, trained: Named, name: str) -> None:
    """Raise UserError unless this is an optimizer of all trained parameters that can be saved."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        what = f"train.optimizer: {name} returns a {type(optimizer).__name__}"
        raise UserError(f"{what}, not a torch.optim.Optimizer")
    held = {id(each) for group in optimizer.param_groups for each in group["params"]}
    if missing := [key for key, each in trained if id(each) not in held]:
        what = f"{len(missing)} of {len(trained)} trained parameters, the first is {missing[0]}"
        hint = "give it all groups that it gets, not copies of their parameters, or set "
        hint += "requires_grad of the others to False in train.model"
        raise UserError(f"train.optimizer: {name} leaves out {what}", hint)
    check_plain(f"train.optimizer: state_dict() of {name}", optimizer.state_dict())


def _begin_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Create the missing momentum buffers as zeros, which changes no result.

    torch 2.13 creates them in the first step, uninitialised. The fused kernel leaves them so where
    the scaler skips that step, and fails for a parameter whose first gradient comes later.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"] if group["momentum"] else ():
            state = optimizer.state[parameter]
            if state.get("momentum_buffer") is None:
                state["momentum_buffer"] = torch.zeros_like(parameter)


def check_groups(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Raise UserError where the parameter groups of a `state_dict()` have other sizes."""
    sizes = [
        [len(group["params"]) for group in groups]
        for groups in (saved["param_groups"], optimizer.param_groups)
    ]
    if sizes[0] != sizes[1]:
        what = f"the checkpoint's optimizer has groups of {sizes[0]} parameters"
        hint = "set train.weight_decay_on and train.optimizer as in that save, or begin a new run"
        raise UserError(f"{what}, this start has {sizes[1]}", f"{hint} with train.init_from")


def load(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Load a `state_dict()` into the optimizer, but keep the options of the present spec.

    Each tensor gets the memory format of its parameter, because fused kernels walk through both in
    one order and ignore strides (torch 2.13).
    """
    options = [{**group, "params": None} for group in optimizer.param_groups]
    optimizer.load_state_dict(saved)
    for group, own in zip(optimizer.param_groups, options, strict=True):
        group.update({**own, "params": group["params"]})
    for parameter, values in optimizer.state.items():
        for name, value in values.items():
            # A user's optimizer may keep others than tensors, or of another shape.
            is_like = getattr(value, "shape", None) == parameter.shape
            if is_like and value.stride() != parameter.stride():
                copy = torch.empty_like(parameter, dtype=value.dtype, device=value.device)
                values[name] = copy.copy_(value)
    if isinstance(optimizer, torch.optim.SGD):
        _begin_momentum(optimizer)


def clip_and_step(
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    parameters: Sequence[nn.Parameter],
    train: Train,
    clip: Callable[[Sequence[nn.Parameter], float], object] = clip_grad_norm_,
) -> None:
    """Update the weights once with the accumulated gradients, then drop these.

    The host never waits for the device. Where fp16 gradients are not finite, the scaler skips the
    update and halves its scale.
    """
    scaler.unscale_(optimizer)
    if train.grad_clip_norm is not None:
        clip(parameters, train.grad_clip_norm)
    scaler.step(optimizer)
    scaler.update()
    if train.optimizer not in OPTIMIZERS:  # it may hold more than the model's parameters
        optimizer.zero_grad(set_to_none=True)
    for parameter in parameters:  # zero_grad takes as long as a kernel of a tiny step
        parameter.grad = None


def schedule(train: Train, length: TrainingLength) -> Callable[[int], float]:
    """Return the learning rate by step, from 0: linear warm-up, then the schedule of the spec.

    A schedule of the user is called with (step, total_steps) and train.schedule_args; it returns a
    factor of train.lr. It must not remember anything: a resume begins at any step.
    """
    factor = {**BUILT_IN_SCHEDULES, **parts("schedule")}.get(train.schedule) or _users_factor(train)

    def lr_at(step: int) -> float:
        if step < train.warmup_steps:
            return train.lr * (step + 1) / train.warmup_steps
        return train.lr * factor(step, length, train)

    return lr_at


def _users_factor(train: Train) -> Factor:
    own = load_code("train.schedule", train.schedule)

    def factor(step: int, length: TrainingLength, train: Train) -> float:
        with user_code("train.schedule", train.schedule):
            value = own(step, length.total_steps, **train.schedule_args)
            if not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
                what = f"train.schedule: {train.schedule} returns {value!r} for step {step}"
                raise UserError(f"{what}: return a factor of train.lr, 0 or more")
        return float(value)  # no checkpoint can hold a number of NumPy

    return factor


def _cosine(step: int, length: TrainingLength, train: Train) -> float:
    done = (step - train.warmup_steps) / max(1, length.total_steps - train.warmup_steps)
    return 0.5 * (1 + math.cos(math.pi * done))


BUILT_IN_SCHEDULES: dict[str, Factor] = {"constant": lambda *_: 1.0, "cosine": _cosine}


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of the next step; a user's optimizer keeps the ratios of its groups."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get(LR_RATIO, 1.0)
