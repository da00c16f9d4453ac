"""The number of GPUs: in sbatch's options, in Slurm's variables, in CUDA's, and as device files.

All spellings are read here. Source: sbatch(1), --gres, --gpus, --tres-per-task and OUTPUT
ENVIRONMENT VARIABLES; CUDA C++ programming guide, CUDA_VISIBLE_DEVICES.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from .console import quantity

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
_GPU = re.compile(r"(?:gres[:/])?gpu(?=[:=]|$)", re.IGNORECASE)
# A type may be a number, as in gpu:3090:2, or a part of a GPU: 1g.5gb. gpu:1:2 and 2K are mistakes.
_ITEM = re.compile(
    r"(?P<only>[0-9]+)"
    r"|(?P<type>(?![0-9]+[A-Za-z](?:[:=]|$))(?=[^:=]*[A-Za-z]|[0-9]{3})[^:=/\s]+)"
    r"(?:[:=](?P<number>[0-9]+))?"
)
# A share of a GPU: a process sees the GPU. Source: gres.conf(5), MPS and Sharding.
_SHARE = re.compile(r"(?:gres[:/])?(?:mps|shard)\b(?!.*[:=]0$).*", re.IGNORECASE)


def in_gres(text: str) -> int | None:
    """Return the GPUs in a list of resources: `gpu`, `gpu:2`, `gres/gpu:a100=2`, `gpu:2(S:0)`.

    Other resources count nothing. None if an item names GPUs in none of Slurm's forms.
    """
    items = _words(text)
    counts = [_item(item) for item in items if _GPU.match(item)]
    shares = [item for item in items if _SHARE.fullmatch(item)]
    return None if None in counts else len(shares) + sum(each[1] for each in counts if each)


def in_number(text: str) -> int | None:
    """Return the GPUs in `4`, `a100:4`, `a100` or `gpu:a100:2,v100:2`; None for no such text."""
    counts = [_item(word) for word in _words(text)]
    return None if None in counts else sum(each[1] for each in counts if each)


def canonical(text: str) -> str:
    """Return GPUs, as of `in_number`, as --gpus-per-node takes them: 2, a100:2, or 0 for none."""
    items = [each for word in _words(text) if (each := _item(word)) is not None and each[1]]
    return ",".join(f"{kind}:{count}" if kind else str(count) for kind, count in items) or "0"


def _words(text: str) -> list[str]:
    return [word.strip() for word in _DETAIL.sub("", text).split(",")]


def _item(word: str) -> tuple[str, int] | None:
    """Return (type, number) of `gpu`, `gpu:2`, `2`, `a100` or `gpu:a100:2`; None for all else."""
    name = _GPU.match(word)
    if name is not None and name.end() == len(word):
        return "", 1
    match = _ITEM.fullmatch(word[name.end() + 1 :] if name else word)
    if match is None:
        return None
    return match["type"] or "", int(match["only"] or match["number"] or 1)


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


def requested_gpus(
    gpus_per_node: int | str, options: Mapping[str, object], nodes: int
) -> list[tuple[str, int]]:
    """Return (key of the section slurm, GPUs of each node) for each key that asks for GPUs."""
    names = {name.replace("_", "-"): (name, value) for name, value in options.items()}
    sockets = str(names.get("sockets-per-node", ("", 1))[1])
    counts = [("gpus_per_node", in_number(str(gpus_per_node)) or 0)]
    for option, (name, value) in names.items():
        count = in_option(option, value, nodes, int(sockets) if sockets.isdecimal() else 1)
        counts.append((f"sbatch_args.{name}", count or 0))
    return [(key, count) for key, count in counts if count]


# What sbatch reads from its environment in place of these options. Source: sbatch(1).
EXPORTED = {
    f"SBATCH_{option.upper().replace('-', '_')}": option
    for option in ("gres", "tres-per-task", "gpus", "gpus-per-node", "gpus-per-task")
}


def contradicting(
    environ: Mapping[str, str], argv: Iterable[str], wanted: int, nodes: int
) -> list[str]:
    """Return the variables, as NAME=VALUE, that make sbatch ask for other GPUs than `wanted`.

    environ, argv: of sbatch. wanted: GPUs of each node.
    """
    given_options = {word.removeprefix("--").partition("=")[0] for word in argv}
    variables = []
    for name, option in EXPORTED.items():
        # Of --gpus the number is that of all nodes. What cannot be read is left to sbatch.
        count = in_option(option, environ.get(name, "0"))
        total = wanted * nodes if option == "gpus" else wanted
        if option not in given_options and count and count != total:
            variables.append(f"{name}={environ[name]}")
    return variables


def allocated_gpus(environ: Mapping[str, str]) -> int | None:
    """Return the GPUs that Slurm gave this job, or this step of it, on this node; None for none.

    In a step SLURM_JOB_GPUS is that of the first node, and of the whole job: with --exclusive a job
    has all GPUs, and a step none of them that did not ask (measured: 22.05).
    """
    on_node = environ.get("SLURM_GPUS_ON_NODE", "")
    if on_node:
        return in_number(on_node) or None
    for name in ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS"):
        if environ.get(name) and (name == "SLURM_STEP_GPUS" or "SLURM_STEP_ID" not in environ):
            return _count_items(environ[name]) or None
    nodes = environ.get("SLURM_JOB_NUM_NODES") or environ.get("SLURM_NNODES") or "1"
    for option in ("gpus-per-node", "gpus-per-task", "gpus"):
        text = environ.get(f"SLURM_{option.upper().replace('-', '_')}", "")
        if text:
            return in_option(option, text, int(nodes) if nodes.isdecimal() else 1) or None
    return None


def too_few(environ: Mapping[str, str], nodes: int, wanted: int) -> str | None:
    """Return how a job's GPUs are fewer than `wanted` on each of its nodes; None if they are not.

    environ: of the batch script, so of the first node.
    """
    total = in_number(environ.get("SLURM_GPUS", ""))
    if total is not None and (total % nodes or total < wanted * nodes):
        return f"{quantity(total, 'GPU')} on {quantity(nodes, 'node')}"
    here = allocated_gpus(environ)
    return f"{quantity(here, 'GPU')} on each node" if here is not None and here < wanted else None


def are_unasked(environ: Mapping[str, str]) -> bool:
    """Return whether a job has GPUs here that no variable asks for: by --gres or --exclusive."""
    asked = ("SLURM_GPUS", *(f"SLURM_GPUS_PER_{each}" for each in ("NODE", "TASK", "SOCKET")))
    return allocated_gpus(environ) is not None and not any(environ.get(name) for name in asked)


def _count_items(text: str) -> int:
    """Return the number of items of `0,1`, `0-3` or `gpu:0-1`."""
    total = 0
    for item in filter(None, text.split(",")):
        match = re.search(r"(\d+)-(\d+)$", item)
        total += int(match[2]) - int(match[1]) + 1 if match else 1
    return total


def visible(environ: Mapping[str, str]) -> tuple[str, list[str]] | None:
    """Return (variable, the devices that it allows); None where no variable limits them."""
    name = next((name for name in VISIBLE if name in environ), None)
    return None if name is None else (name, _device_list(environ[name]))


def _device_list(text: str) -> list[str]:
    """Return the devices of a list, up to the first that is none: `0,1`, GPU-<uuid>, MIG-<uuid>.

    CUDA ignores all behind a wrong entry, such as -1 or Slurm's NoDevFiles, and the whole list if
    an entry repeats.
    """
    devices: list[str] = []
    for item in (part.strip() for part in text.split(",")):
        if not (_NUMBER.fullmatch(item) or re.match("(GPU|MIG)-.", item)):
            break
        devices.append(item)
    return devices if len(set(devices)) == len(devices) else []


def of_machine(dev: Path | None = None, kfd: Path | None = None) -> int:
    """Return the GPUs that this machine has device files or driver entries for."""
    nvidia = len(list((dev or DEV).glob("nvidia[0-9]*")))
    ids = [path.read_text().strip() for path in (kfd or KFD_NODES).glob("*/gpu_id")]
    return nvidia or len([each for each in ids if each not in ("", "0")])


def limiting_variable(environ: Mapping[str, str], wanted: int) -> str | None:
    """Return which variable leaves a process fewer than `wanted` GPUs; None if none does."""
    visible_ones = visible(environ)
    if visible_ones is None or len(visible_ones[1]) >= wanted:
        return None
    name, devices = visible_ones
    bind = environ.get("SLURM_GPU_BIND")
    return (
        f"{name} is {environ[name]!r}, which leaves {quantity(len(devices), 'GPU')}"
        f"{f' (SLURM_GPU_BIND is {bind})' if bind else ''}"
    )
