"""The optimizer and its step, and the learning rate as a pure function of the step."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from jobs.spec import Train
from trainer.data.batches import TrainingLength


def create(module: nn.Module, train: Train) -> torch.optim.Optimizer:
    """Return the optimizer of `train`; vectors (biases, norms) get no weight decay.

    The loop sets its learning rate before each step, see `lr_at`.
    """
    parameters = [p for p in module.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": train.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    # fused is not the default on the CPU; it makes the optimizer's part 3 to 6 times faster.
    if train.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=train.lr, fused=True)
    optimizer = torch.optim.SGD(
        groups, lr=train.lr, momentum=train.momentum, nesterov=train.nesterov, fused=True
    )
    _begin_momentum(optimizer)
    return optimizer


def _begin_momentum(optimizer: torch.optim.SGD) -> None:
    """Create the missing momentum buffers as zeros, which changes no result.

    torch 2.13 creates them in the first step, uninitialised. The fused kernel leaves them so where
    the scaler skips that step, and fails for a parameter whose first gradient comes later.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"] if group["momentum"] else ():
            state = optimizer.state[parameter]
            if state.get("momentum_buffer") is None:
                state["momentum_buffer"] = torch.zeros_like(parameter)


def load(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Load a `state_dict()` into the optimizer, but keep the options of the present spec.

    Each tensor gets the memory format of its parameter, because fused kernels walk through both
    in one order and ignore strides (torch 2.13).
    """
    options = [{**group, "params": None} for group in optimizer.param_groups]
    optimizer.load_state_dict(saved)
    for group, own in zip(optimizer.param_groups, options, strict=True):
        group.update({**own, "params": group["params"]})
    for parameter, values in optimizer.state.items():
        for name, value in values.items():
            if value.shape == parameter.shape and value.stride() != parameter.stride():
                values[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
    if isinstance(optimizer, torch.optim.SGD):
        _begin_momentum(optimizer)


def clip_and_step(
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    parameters: Iterable[nn.Parameter],
    train: Train,
) -> None:
    """Update the weights once with the accumulated gradients, then drop these.

    The host never waits for the device. Where fp16 gradients are not finite, the scaler skips the
    update and halves its scale.
    """
    scaler.unscale_(optimizer)
    if train.grad_clip_norm is not None:
        clip_grad_norm_(parameters, train.grad_clip_norm)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)


def lr_at(step: int, length: TrainingLength, train: Train) -> float:
    """Return the learning rate of a step (from 0): linear warm-up, then the schedule."""
    if step < train.warmup_steps:
        return train.lr * (step + 1) / train.warmup_steps
    if train.schedule == "step":
        epoch = length.finished_epochs(step)
        num_passed = sum(epoch >= milestone for milestone in train.lr_milestones)
        return train.lr * train.lr_gamma**num_passed
    if train.schedule == "cosine":
        done = (step - train.warmup_steps) / max(1, length.total_steps - train.warmup_steps)
        return train.lr * 0.5 * (1 + math.cos(math.pi * done))
    return train.lr


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of the next step."""
    for group in optimizer.param_groups:
        group["lr"] = lr
