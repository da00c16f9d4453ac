"""Measures tokens/s, MFU and the use of rank 0's GPU, for its log lines."""

from __future__ import annotations

import contextlib
import functools
import re
from typing import TYPE_CHECKING

from ...hooks import Callback
from ...process.watcher import Pulse

if TYPE_CHECKING:
    from ...training.loop import Loop

# TFLOP/s of bf16 and fp16 products, dense (half of what a data sheet has "with sparsity"), by a
# word of the device's name; the first one counts. Source: the data sheet of each device.
PEAK_TFLOPS = {
    "GB200": 2500,  # 5,000 with sparsity
    "B200": 2250,  # HGX B200: 4,500 with sparsity
    "H200 NVL": 835,  # 1,671 with sparsity, as of H100 NVL
    "H200": 989,  # 1,979 with sparsity, as of H100 SXM
    "H100 NVL": 835,
    "H100 PCIe": 756,  # 1,513 with sparsity
    "H100": 989,
    "A100": 312,  # 624 with sparsity
    "L40S": 362,  # 733 with sparsity
    "MI300X": 1307,
}


def callbacks(pulse: Pulse) -> list[Callback]:
    return [Speed()]


class Speed(Callback):
    """Lets rank 0 show at its log lines what `measured` returns."""

    def restored(self, loop: Loop) -> None:
        if loop.reporter is not None:
            loop.reporter.more = functools.partial(measured, loop)


def measured(loop: Loop, samples_per_s: float) -> dict[str, float]:
    """Return tokens_per_s, mfu (of 1), gpu_use (of 1) and gpu_gib, as far as they are known.

    samples_per_s: of all ranks. gpu_use, gpu_gib: of rank 0's GPU, by NVML or AMD SMI.
    """
    import torch

    replica, device, found = loop.replica, loop.device, dict[str, float]()
    if loop.train.objective == "language_model" and replica.fixed_items is not None:
        found["tokens_per_s"] = round(samples_per_s * replica.fixed_items / replica.batch_size, 1)
    if device.type == "cuda":
        peak = peak_flops(torch.cuda.get_device_name(device), loop.train.precision)
        if peak is not None and "tokens_per_s" in found:
            # Source: Chowdhery et al., "PaLM", appendix B, without the term of the attention.
            per_token = sum((6 if x.requires_grad else 4) * x.numel() for x in replica.parameters)
            of_rank = found["tokens_per_s"] / loop.distributed.world_size
            found["mfu"] = round(of_rank * per_token / peak, 4)
        # Without nvidia-ml-py, or a driver that answers, there are no values.
        with contextlib.suppress(Exception):
            found["gpu_use"] = torch.cuda.utilization(device) / 100
            found["gpu_gib"] = round(torch.cuda.device_memory_used(device) / 2**30, 2)
    return found


def peak_flops(device_name: str, precision: str) -> float | None:
    """Return the most FLOP/s of a GPU; None for a part of one, or where the table has none."""
    if precision not in ("bf16", "fp16") or re.search(r" MIG |-\d+C$", device_name):
        return None
    names = (name for name in PEAK_TFLOPS if re.search(rf"\b{name}\b", device_name))
    return next((PEAK_TFLOPS[name] * 1e12 for name in names), None)
