"""Reads a GPU's health counters from its driver, through the optional package nvidia-ml-py."""

import contextlib
import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

# Source: nvml.h, nvmlClocksEventReasons.
HW_SLOWDOWN = {
    0x40: "it is too hot",
    0x80: "its power brake is on",
    0x08: "its hardware reports a slowdown",
}
# The hardware also reports a slowdown while it changes clocks: only one that lasts counts.
LASTING_S = 0.2


@dataclass(frozen=True)
class Readings:
    """One GPU's readings; None for those that it does not support.

    uncorrected_errors: ECC errors in memory since the driver was loaded.
    clock_reasons: a bit for each reason why the clocks are below their maximum.
    """

    uncorrected_errors: int | None = None
    is_remap_pending: bool | None = None
    has_remap_failed: bool | None = None
    clock_reasons: int | None = None


def problem(readings: Readings) -> str:
    """Return what makes this GPU unfit for a training; "" if nothing does."""
    problems = []
    if readings.uncorrected_errors:
        problems.append(f"{readings.uncorrected_errors} uncorrected ECC errors")
    if readings.has_remap_failed:
        problems.append("a row of its memory could not be remapped")
    if readings.is_remap_pending:
        problems.append("rows of its memory are remapped only after a reset")
    reasons = readings.clock_reasons or 0
    slowed = [text for bit, text in HW_SLOWDOWN.items() if reasons & bit]
    if slowed:
        problems.append(f"its clocks are slowed down, {slowed[0]}")
    return "; ".join(problems)


def read(device: torch.device) -> tuple[Readings | None, str]:
    """Return (the readings of a rank's GPU, or the reason why there are none)."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return None, "nvidia-ml-py is not installed"
    try:
        nvml.nvmlInit()
        # Not by index: the driver ignores CUDA_VISIBLE_DEVICES.
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        return _read(nvml, handle), ""
    except nvml.NVMLError as error:
        return None, f"the driver cannot be read: {error}"
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def _read(nvml: Any, handle: Any) -> Readings:
    def read_or_none(function: Callable[..., Any], *arguments: Any) -> Any:
        """Return None where this model of GPU or this driver does not support the reading."""
        try:
            return function(handle, *arguments)
        except nvml.NVMLError:
            return None

    kind = (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
    remapped = read_or_none(nvml.nvmlDeviceGetRemappedRows)
    reasons = read_or_none(nvml.nvmlDeviceGetCurrentClocksThrottleReasons)
    if reasons and any(reasons & bit for bit in HW_SLOWDOWN):
        time.sleep(LASTING_S)
        reasons &= read_or_none(nvml.nvmlDeviceGetCurrentClocksThrottleReasons) or 0
    return Readings(
        uncorrected_errors=read_or_none(nvml.nvmlDeviceGetTotalEccErrors, *kind),
        is_remap_pending=None if remapped is None else bool(remapped[2]),
        has_remap_failed=None if remapped is None else bool(remapped[3]),
        clock_reasons=reasons,
    )
