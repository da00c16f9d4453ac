"""Reads a GPU's health counters from its driver, through the optional package nvidia-ml-py."""

import contextlib
import importlib
import time
from collections.abc import Sequence
from typing import Any

import torch

# Source: nvml.h, nvmlClocksEventReasons.
HW_SLOWDOWN = {
    0x40: "it is too hot",
    0x80: "its power brake is on",
    0x08: "its hardware reports a slowdown",
}


def problem(device: torch.device) -> tuple[str, str]:
    """Return (what makes a rank's GPU unfit for a training, why that is not known), or "" each."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return "", "nvidia-ml-py is not installed"
    try:
        nvml.nvmlInit()
        # Not by index: the driver ignores CUDA_VISIBLE_DEVICES.
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        return words(*_read(nvml, handle)), ""
    except nvml.NVMLError as error:
        return "", f"the driver cannot be read: {error}"
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def words(num_errors: int | None, remapped: Sequence[int] | None, reasons: int | None) -> str:
    """Return what makes a GPU unfit for a training; "" if nothing does.

    None: this GPU or driver has no such reading. num_errors: in memory since the driver was loaded.
    remapped: rows of memory, by NVML. reasons: a bit for each why its clocks are slower.
    """
    _, _, is_pending, has_failed = remapped or (0, 0, 0, 0)
    slowed = [text for bit, text in HW_SLOWDOWN.items() if (reasons or 0) & bit]
    problems = {
        f"{num_errors} uncorrected ECC errors": num_errors,
        "a row of its memory could not be remapped": has_failed,
        "rows of its memory are remapped only after a reset": is_pending,
        f"its clocks are slowed down, {''.join(slowed[:1])}": slowed,
    }
    return "; ".join(text for text, is_so in problems.items() if is_so)


def _read(nvml: Any, handle: Any) -> tuple[Any, Any, Any]:
    """Return what `words` takes."""

    def read(name: str, *arguments: Any) -> Any:
        with contextlib.suppress(nvml.NVMLError):
            return getattr(nvml, f"nvmlDeviceGet{name}")(handle, *arguments)

    kind = (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
    reasons = read("CurrentClocksThrottleReasons")
    if reasons and any(reasons & bit for bit in HW_SLOWDOWN):
        time.sleep(0.2)  # one that lasts counts, not one of a change of clocks
        reasons &= read("CurrentClocksThrottleReasons") or 0
    return read("TotalEccErrors", *kind), read("RemappedRows"), reasons
