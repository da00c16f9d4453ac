"""The number of GPUs: in sbatch's options, in Slurm's variables, in CUDA's, and as device files.

All spellings are read here. Source: sbatch(1), --gres, --gpus, --tres-per-task and OUTPUT
ENVIRONMENT VARIABLES; CUDA C++ programming guide, CUDA_VISIBLE_DEVICES.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from slurm_job_kit.jobs.console import counted

# Options whose value lists resources, and those whose value is a number of GPUs with a type or
# without. A node has one task, so what is for each task is for each node.
GRES_OPTIONS = ("gres", "tres-per-node", "tres-per-task")
GPU_OPTIONS = ("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket")
# The devices that a process may use, for NVIDIA and AMD; the first one that is set decides.
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
# Of an allocation: how many GPUs a node, the step and the job have.
GIVEN = (
    *("SLURM_GPUS_ON_NODE", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS"),
    *("SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK", "SLURM_GPUS"),
)
DEV = Path("/dev")
KFD_NODES = Path("/sys/class/kfd/kfd/topology/nodes")  # of AMD's driver; processors have gpu_id 0
_NUMBER = re.compile(r"[0-9]+")
_DETAIL = re.compile(r"\([^)]*\)")  # (S:0) or (IDX:0-1)
# A share of a GPU: a process sees the GPU. Source: gres.conf(5), MPS and Sharding.
_SHARES = ("mps", "shard")


def in_gres(text: str) -> int | None:
    """Return the GPUs in a list of resources: `gpu`, `gpu:2`, `gres/gpu:a100=2`, `gpu:2(S:0)`.

    Other resources count nothing. None if an item names GPUs in none of Slurm's forms.
    """
    total = 0
    for word in filter(None, (item.strip() for item in _DETAIL.sub("", text).split(","))):
        name, *rest = re.split("[:/=]", re.sub("^gres[:/]", "", word))
        if name.lower() in _SHARES:
            total += 0 if rest and rest[-1] == "0" else 1
        elif name.lower() == "gpu":
            count = _typed(rest)
            if count is None:
                return None
            total += count
    return total


def in_number(text: str) -> int | None:
    """Return the GPUs in `4`, `a100:4`, `a100` or `a100:2,v100:2`; None for no such text."""
    total = 0
    for word in text.split(","):
        parts = re.split("[:=]", _DETAIL.sub("", word).strip())
        count = _typed(parts[1:] if parts[0] in ("gpu", "gres/gpu") else parts)
        if count is None:
            return None
        total += count
    return total


def _typed(parts: list[str]) -> int | None:
    """The number in [], [type], [number] or [type, number]; None for anything else."""
    if not all(parts) or len(parts) > 2:
        return None
    if parts and _NUMBER.fullmatch(parts[-1]):
        # A type may be a number: gpu:3090:2. But gpu:1:2 is a mistake.
        is_type = len(parts) < 2 or not re.fullmatch("[0-9]{1,2}", parts[0])
        return int(parts[-1]) if is_type else None
    return 1 if len(parts) < 2 else None


def in_option(name: str, value: object, nodes: int = 1, sockets: int = 1) -> int | None:
    """Return the GPUs of each node that an option of sbatch asks for; 0 for any other option.

    None if the value has none of Slurm's forms. sockets: of each node (--sockets-per-node).
    """
    if name in GRES_OPTIONS:
        return in_gres(str(value))
    if name not in GPU_OPTIONS or value is False:
        return 0
    count = in_number(str(value))
    if count is None:
        return None
    return -(-count // nodes) if name == "gpus" else count * (1, sockets)[name == GPU_OPTIONS[3]]


def requested(
    gpus_per_node: int | str, options: Mapping[str, object], nodes: int
) -> list[tuple[str, int]]:
    """Return (key of the section slurm, GPUs of each node) for each key that asks for GPUs."""
    names = {name.replace("_", "-"): (name, value) for name, value in options.items()}
    sockets = str(names.get("sockets-per-node", ("", 1))[1])
    found = [("gpus_per_node", in_number(str(gpus_per_node)) or 0)]
    for option, (name, value) in names.items():
        count = in_option(option, value, nodes, int(sockets) if sockets.isdecimal() else 1)
        found.append((f"sbatch_args.{name}", count or 0))
    return [(key, count) for key, count in found if count]


def given(environ: Mapping[str, str]) -> int | None:
    """Return the GPUs that Slurm gave this job on this node; None if it gave none.

    On other nodes than the first one SLURM_JOB_GPUS is that of the first node, too (measured on
    22.05): the variables of the node and of the step come first.
    """
    on_node = environ.get("SLURM_GPUS_ON_NODE", "")
    if on_node:
        return in_number(on_node) or None
    for name in ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS"):
        if environ.get(name):
            return _listed(environ[name]) or None
    nodes = environ.get("SLURM_JOB_NUM_NODES") or environ.get("SLURM_NNODES") or "1"
    for option in ("gpus-per-node", "gpus-per-task", "gpus"):
        text = environ.get(f"SLURM_{option.upper().replace('-', '_')}", "")
        if text:
            return in_option(option, text, int(nodes) if nodes.isdecimal() else 1) or None
    return None


def _listed(text: str) -> int:
    """The number of items of `0,1`, `0-3` or `gpu:0-1`."""
    total = 0
    for item in filter(None, text.split(",")):
        found = re.search(r"(\d+)-(\d+)$", item)
        total += int(found[2]) - int(found[1]) + 1 if found else 1
    return total


def visible(environ: Mapping[str, str]) -> tuple[str, list[str]] | None:
    """Return (variable, the devices that it allows); None where no variable limits them."""
    name = next((name for name in VISIBLE if name in environ), None)
    return None if name is None else (name, _allowed(environ[name]))


def _allowed(text: str) -> list[str]:
    """The devices of a list, up to the first that is none: `0,1`, GPU-<uuid>, MIG-<uuid>.

    CUDA ignores all behind a wrong entry, such as -1 or Slurm's NoDevFiles, and the whole list if
    an entry repeats.
    """
    found: list[str] = []
    for item in (part.strip() for part in text.split(",")):
        if not (_NUMBER.fullmatch(item) or re.match("(GPU|MIG)-.", item)):
            break
        found.append(item)
    return found if len(set(found)) == len(found) else []


def of_machine(dev: Path | None = None, kfd: Path | None = None) -> int:
    """Return the GPUs that this machine has device files or driver entries for."""
    nvidia = len(list((dev or DEV).glob("nvidia[0-9]*")))
    ids = [path.read_text().strip() for path in (kfd or KFD_NODES).glob("*/gpu_id")]
    return nvidia or len([each for each in ids if each not in ("", "0")])


def limited_by(environ: Mapping[str, str], wanted: int) -> str | None:
    """Return which variable leaves a process fewer than `wanted` GPUs; None if none does."""
    found = visible(environ)
    if found is None or len(found[1]) >= wanted:
        return None
    name, devices = found
    bind = environ.get("SLURM_GPU_BIND")
    return (
        f"{name} is {environ[name]!r}, which leaves {counted(len(devices), 'GPU')}"
        f"{f' (SLURM_GPU_BIND is {bind})' if bind else ''}"
    )
