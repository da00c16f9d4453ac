"""What a GPU's driver says of its health, through the optional package nvidia-ml-py."""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

# Source: nvml.h, nvmlClocksEventReasons.
SW_THERMAL_SLOWDOWN = 0x20
HW_SLOWDOWN = {0x40: "it is too hot", 0x80: "its power brake is on", 0x08: "its hardware says so"}
# The hardware also reports a slowdown while it changes clocks: only one that lasts counts.
LASTING_S = 0.2


@dataclass(frozen=True)
class Readings:
    """One GPU's readings; None for what it does not tell.

    uncorrected_errors: ECC errors in memory since the driver was loaded.
    clock_reasons: a bit for each reason why the clocks are not at their highest.
    """

    uncorrected_errors: int | None = None
    is_remap_pending: bool | None = None
    has_remap_failed: bool | None = None
    clock_reasons: int | None = None


def verdict(readings: Readings) -> str:
    """What makes this GPU unfit for a training; empty if nothing does."""
    found = []
    if readings.uncorrected_errors:
        found.append(f"{readings.uncorrected_errors} uncorrected ECC errors")
    if readings.has_remap_failed:
        found.append("a row of its memory could not be remapped")
    if readings.is_remap_pending:
        found.append("rows of its memory wait for a reset to be remapped")
    reasons = readings.clock_reasons or 0
    slowed = [text for bit, text in HW_SLOWDOWN.items() if reasons & bit]
    if slowed:
        found.append(f"its clocks are slowed down, {slowed[0]}")
    return "; ".join(found)


def remark(readings: Readings) -> str:
    """What is worth a line in the log, and no reason to leave the node."""
    hot = (readings.clock_reasons or 0) & SW_THERMAL_SLOWDOWN
    return "the driver keeps the GPU's clocks low: it is hot" if hot else ""


def read(device: torch.device) -> tuple[Readings | None, str]:
    """(readings of a rank's GPU, why there are none)."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return None, "nvidia-ml-py is not installed"
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return None, f"the driver does not tell it: {error}"
    try:
        # Not by index: CUDA_VISIBLE_DEVICES is unknown to the driver.
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        return _read(nvml, handle), ""
    except nvml.NVMLError as error:
        return None, f"the driver does not tell it: {error}"
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def _read(nvml: Any, handle: Any) -> Readings:
    def ask(question: Callable[..., Any], *arguments: Any) -> Any:
        """None where this model of GPU or this driver does not know the answer."""
        try:
            return question(handle, *arguments)
        except nvml.NVMLError:
            return None

    kind = (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
    remapped = ask(nvml.nvmlDeviceGetRemappedRows)
    reasons = ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons)
    if reasons and any(reasons & bit for bit in HW_SLOWDOWN):
        time.sleep(LASTING_S)
        reasons &= ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons) or 0
    return Readings(
        uncorrected_errors=ask(nvml.nvmlDeviceGetTotalEccErrors, *kind),
        is_remap_pending=None if remapped is None else bool(remapped[2]),
        has_remap_failed=None if remapped is None else bool(remapped[3]),
        clock_reasons=reasons,
    )
