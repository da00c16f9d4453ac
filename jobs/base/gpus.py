"""The number of GPUs: in a spec, in Slurm's variables, in CUDA's, and as device files.

Source: sbatch(1), OUTPUT ENVIRONMENT VARIABLES; CUDA C++ programming guide, CUDA_VISIBLE_DEVICES.
"""

import contextlib
import itertools
import re
from collections.abc import Mapping
from pathlib import Path

from .console import quantity

# The devices that a process may use, for NVIDIA and AMD; the first one that is set decides.
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
DEV = Path("/dev")
KFD_NODES = Path("/sys/class/kfd/kfd/topology/nodes")  # of AMD's driver; processors have gpu_id 0


def in_number(text: str) -> int:
    """Return the GPUs in `4`, `a100:4` or `a100:1,v100:2`; 0 for any other text."""
    return sum(int(number) for number in re.findall(r"(?:^|[:=])([0-9]+)(?=,|\(|$)", text))


def allocated_gpus(environ: Mapping[str, str]) -> int | None:
    """Return the GPUs that Slurm gave this job, or this step, on this node; None for none.

    A step has SLURM_JOB_GPUS of the whole job: with --exclusive that has all GPUs of its nodes, and
    a step none of them that did not ask (measured: 22.05).
    """
    for name in ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK"):
        if environ.get(name):
            return in_number(environ[name]) or None
    is_step = "SLURM_STEP_ID" in environ
    ids = "" if is_step else environ.get("SLURM_JOB_GPUS", "")  # `0,1` or `0-3`
    ranges = re.findall(r"(\d+)(?:-(\d+))?", ids)
    return sum(int(last or first) - int(first) + 1 for first, last in ranges) or None


def too_few(environ: Mapping[str, str], nodes: int, wanted: int) -> str | None:
    """Return how a job's GPUs are fewer than `wanted` on each of its nodes; None if they are not.

    environ: of the batch script, so of the first node.
    """
    total = in_number(environ.get("SLURM_GPUS", ""))
    if total and (total % nodes or total < wanted * nodes):
        return f"{quantity(total, 'GPU')} on {quantity(nodes, 'node')}"
    here = allocated_gpus(environ)
    return f"{quantity(here, 'GPU')} on each node" if here is not None and here < wanted else None


def visible(environ: Mapping[str, str]) -> tuple[str, list[str]]:
    """Return (variable, the devices that it allows); ("", []) where no variable limits them.

    CUDA ignores all behind a wrong entry, such as -1 or Slurm's NoDevFiles, and the whole list if
    an entry repeats.
    """
    name = next((name for name in VISIBLE if name in environ), "")
    items = (part.strip() for part in environ.get(name, "").split(","))
    devices = list(itertools.takewhile(re.compile("[0-9]+|(GPU|MIG)-.+").fullmatch, items))
    return name, devices if len(set(devices)) == len(devices) else []


def of_machine(dev: Path | None = None, kfd: Path | None = None) -> int:
    """Return the GPUs that this machine has device files or driver entries for."""
    nvidia = len(list((dev or DEV).glob("nvidia[0-9]*")))
    amd = 0
    for path in (kfd or KFD_NODES).glob("*/gpu_id"):
        with contextlib.suppress(OSError):  # EPERM: of another job, by the cgroup of devices
            amd += path.read_text().strip() not in ("", "0")
    return nvidia or amd


def limiting_variable(environ: Mapping[str, str], wanted: int) -> str | None:
    """Return which variable leaves a process fewer than `wanted` GPUs; None if none does."""
    name, devices = visible(environ)
    if not name or len(devices) >= wanted:
        return None
    return f"{name} is {environ[name]!r}, which leaves {quantity(len(devices), 'GPU')}"
