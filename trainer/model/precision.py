"""The numbers that a training computes in: fp32, TF32, or autocast to bf16 or fp16."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from jobs.spec import Train

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Precision:
    """How forward passes are cast, and the scaler of their gradients.

    dtype: of autocast; None computes in what the weights are.
    scaler: of fp16; otherwise one that does nothing.
    """

    device_type: str
    dtype: torch.dtype | None
    scaler: torch.amp.GradScaler

    def autocast(self) -> AbstractContextManager[object]:
        """A context for the forward pass and the loss."""
        if self.dtype is None:
            return nullcontext()  # autocast costs time in each step even if it is disabled
        return torch.autocast(self.device_type, self.dtype)


def set_up(train: Train, device: torch.device, say: Callable[[str], None]) -> Precision:
    """Switch TF32 as `train.precision` says, tell what it does not get, and return the rest."""
    # The older switches: once the newer `fp32_precision` is set, reading these raises, and
    # torch.compile reads them (torch 2.13). cuDNN's is on by default.
    is_tf32 = train.precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = is_tf32
    torch.backends.cudnn.allow_tf32 = is_tf32
    if text := warning(train.precision, device):
        say(f"warning: {text}")
    scaler = torch.amp.GradScaler(device.type, enabled=train.precision == "fp16")
    return Precision(device.type, AUTOCAST.get(train.precision), scaler)


def warning(precision: str, device: torch.device) -> str | None:
    """What a device does not do as asked."""
    if precision == "tf32" and device.type != "cuda":
        return "train.precision tf32 has no effect on a CPU, which computes in fp32"
    if precision == "tf32" and torch.cuda.get_device_capability(device) < (8, 0):
        return f"train.precision tf32 has no effect on {torch.cuda.get_device_name(device)}: fp32"
    # oneDNN has no such backward: 113 ms against 0.9 for one convolution of 64 channels (2.13).
    if precision == "fp16" and device.type != "cuda":
        return "train.precision fp16 makes convolutions a hundred times slower on a CPU; bf16 won't"
    return None
