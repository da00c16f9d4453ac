"""Finds out before torchrun starts whether the ranks of this node will see the GPUs asked for.

Without it a script that takes the CPU where there is no GPU would train there for days. torch is
not imported: its file version.py has for what it was built, and CUDA's driver counts the GPUs.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .. import gpus
from ..console import quantity
from ..spec import Spec

PROBE_TIMEOUT_S = 120  # the first use of a GPU loads its driver
_BUILT_FOR = re.compile(r"^(cuda|hip|xpu)\b[^=\n]*=\s*['\"]([^'\"]*)", re.MULTILINE)
# In a process of its own: the agent must not hold a GPU. Source: CUDA driver API, cuInit,
# cuDeviceGetCount.
PROBE = """
import ctypes
try:
    driver = ctypes.CDLL("libcuda.so.1")
except OSError:
    raise SystemExit("no driver")
count = ctypes.c_int()
error = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
print(error, count.value)
"""
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE


@dataclass(frozen=True)
class GpuProblem:
    """Why the ranks would see too few GPUs, and what to do."""

    reason: str
    hint: str
    # How many the node's driver shows; None where that is not why: another node has no more then.
    num_gpus: int | None = None


def requested_gpus(spec: Spec, environ: Mapping[str, str]) -> int:
    """Return how many GPUs the job asked for on this node: by its spec, else by its allocation."""
    return spec.slurm.num_gpus or gpus.allocated_gpus(environ) or 0


def expected_gpus(spec: Spec, environ: Mapping[str, str]) -> int:
    """Return how many GPUs the ranks of this node should see.

    A user who names the devices in the spec means fewer of them than the job has.
    """
    number, ranks = requested_gpus(spec, environ), spec.launch.nproc_per_node
    is_named = gpus.visible(spec.launch.env) is not None and isinstance(ranks, int)
    return min(number, int(ranks)) if is_named else number


def problem(spec: Spec, environ: Mapping[str, str], torch: Path) -> GpuProblem | None:
    """Return why the ranks would see fewer GPUs than asked for; None if they see them.

    environ: of the ranks. torch: the file of the package torch.
    """
    number = requested_gpus(spec, environ)
    if number == 0:
        return None
    asked = spec.slurm.gpus_are if spec.slurm.num_gpus else f"the job has {quantity(number, 'GPU')}"
    cpu = "slurm.gpus_per_node: 0 trains on the CPU"
    version = torch.with_name("version.py")
    built_for = dict(_BUILT_FOR.findall(_text(version)))
    if version.is_file() and not built_for:
        reason = f"{asked}, but torch of {sys.executable} is a CPU build ({torch.parent})"
        return GpuProblem(reason, f"install a build of torch for GPUs there; {cpu}")
    number = expected_gpus(spec, environ)
    if limit := gpus.limiting_variable(environ, number):
        hint = f"look for it in launch.env, setup and your shell's start-up files; {cpu}"
        return GpuProblem(f"{asked}, but {limit}", hint)
    fault, count = _of_driver(environ, number) if "cuda" in built_for else ("", number)
    hint = f"look at nvidia-smi on the node; {cpu}"
    return GpuProblem(f"{asked}, but {fault}", hint, count) if fault else None


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _of_driver(environ: Mapping[str, str], number: int) -> tuple[str, int]:
    """Return (what CUDA's driver reports if it shows fewer GPUs, how many it shows).

    ("", number) if it shows enough, or if it hangs.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROBE],
            env=dict(environ),
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "", number
    if done.stderr.strip() == "no driver":
        return "libcuda.so.1 is missing: no NVIDIA driver here, or the container hides it", 0
    words = done.stdout.split()
    if len(words) != 2:
        return "", number
    error, count = map(int, words)
    if error not in (0, _NO_DEVICE):
        return f"CUDA's driver fails with error {error}", 0
    mig = "; it shows a process one MIG instance at most" if "MIG-" in str(environ) else ""
    fault = f"CUDA's driver shows {quantity(count, 'GPU')}{mig}" if count < number else ""
    return fault, count
