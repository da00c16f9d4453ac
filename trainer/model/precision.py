"""The numeric precision of a training: fp32, TF32, or autocast to bf16 or fp16."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from ..contract import Train


@dataclass(frozen=True)
class Precision:
    """The autocast of forward passes, and the scaler of their gradients."""

    device_type: str
    dtype: torch.dtype | None  # of autocast; None for no autocast
    scaler: torch.amp.GradScaler  # scales fp16 losses; disabled for every other precision

    def autocast(self) -> AbstractContextManager[object]:
        """Return a context for the forward pass and the loss."""
        if self.dtype is None:
            return nullcontext()  # a disabled autocast costs time in each step, too
        return torch.autocast(self.device_type, self.dtype)


def set_up(train: Train, device: torch.device) -> Precision:
    """Set torch's global TF32 switches for `train.precision`; return the autocast and scaler."""
    # The older switches, because torch.compile reads them, and reading them raises once the newer
    # `fp32_precision` is set (torch 2.13). cuDNN's is on by default.
    is_tf32 = train.precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = is_tf32
    torch.backends.cudnn.allow_tf32 = is_tf32
    scaler = torch.amp.GradScaler(device.type, enabled=train.precision == "fp16")
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(train.precision)
    return Precision(device.type, dtype, scaler)
