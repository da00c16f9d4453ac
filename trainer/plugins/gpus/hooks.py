"""Measures tokens/s, MFU and the use of rank 0's GPU, for its log lines."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from ...hooks import Callback
from ...process.watcher import Pulse

if TYPE_CHECKING:
    from ...training.loop import Loop

# TFLOP/s of a dense product in bf16 or fp16, by a word of the device's name; the first one counts.
# Source: the data sheets of NVIDIA and AMD.
PEAK_TFLOPS = {
    "B200": 2250,
    "H200": 989,
    "H100 PCIe": 756,
    "H100": 989,
    "A100": 312,
    "V100": 125,
    "L40S": 362,
    "L4": 121,
    "A10G": 70,
    "MI300X": 1307,
    "MI250X": 383,
}


def callbacks(pulse: Pulse) -> list[Callback]:
    return [Speed()]


class Speed(Callback):
    """What rank 0 shows of the speed beside samples/s."""

    def restored(self, loop: Loop) -> None:
        if loop.reporter is not None:
            self._loop = loop
            loop.reporter.more = self.measured

    def measured(self, samples_per_s: float) -> dict[str, float]:
        """Return tokens_per_s, mfu (of 1), gpu_use (of 1) and gpu_gib, as far as they are known.

        samples_per_s: of all ranks. gpu_use, gpu_gib: of rank 0's GPU, by NVML or AMD SMI.
        """
        import torch

        replica, device, found = self._loop.replica, self._loop.device, dict[str, float]()
        if self._loop.data.facts.vocab_size is not None and replica.fixed_items is not None:
            found["tokens_per_s"] = samples_per_s * replica.fixed_items / replica.batch_size
        if device.type == "cuda":
            name, ranks = torch.cuda.get_device_name(device), self._loop.distributed.world_size
            peak = peak_flops(name, self._loop.train.precision)
            if peak is not None and replica.flops:
                found["mfu"] = samples_per_s / ranks / replica.batch_size * replica.flops / peak
            # Without nvidia-ml-py, or a driver that answers, there are no values.
            with contextlib.suppress(Exception):
                found["gpu_use"] = torch.cuda.utilization(device) / 100
                found["gpu_gib"] = torch.cuda.device_memory_used(device) / 2**30
        return found


def peak_flops(device_name: str, precision: str) -> float | None:
    """Return the most FLOP/s of a GPU; None where the table has none for it or the precision."""
    known = (peak for name, peak in PEAK_TFLOPS.items() if re.search(rf"{name}\b", device_name))
    return next((peak * 1e12 for peak in known if precision in ("bf16", "fp16")), None)
