"""Describes what the bits of a result depend on, and derives whether a resume is bitwise."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from trainer.dist.context import gather
from trainer.dist.run_handle import RankContext


def describe(context: RankContext) -> dict[str, Any]:
    """Return this attempt's environment, the same on every rank.

    `ranks` has one fingerprint of the environment per rank, so that differences between ranks show.
    """
    device = context.device
    own: dict[str, Any] = {
        "torch": str(torch.__version__),
        **{package: _version(package) for package in ("numpy", "pillow")},
        "processor": processor(),
        "instruction set": torch.backends.cpu.get_cpu_capability(),
        "threads per rank": torch.get_num_threads(),
        "world size": context.distributed.world_size,
        "device": device.type,
    }
    if device.type == "cuda":
        own["GPU"] = torch.cuda.get_device_name(device)
        own["CUDA"] = torch.version.cuda
        own["cuDNN"] = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
        own["NCCL"] = list(torch.cuda.nccl.version())  # type: ignore[no-untyped-call]
    # A resume may change keys of the section `train`.
    own |= {f"train.{key}": value for key, value in dataclasses.asdict(context.train).items()}
    digest = hashlib.sha256(json.dumps(own, sort_keys=True).encode()).digest()[:7]
    fingerprint = torch.tensor(int.from_bytes(digest, "big"), dtype=torch.int64, device=device)
    return {**own, "ranks": [int(value) for value in gather(fingerprint)]}


def _version(package: str) -> str:
    """Return the version of a package that computes or reads samples; "none" without it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


def processor() -> str:
    """Return the processor's model name: oneDNN's blocking depends on more than its features."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def extended(history: list[dict[str, Any]], now: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the environments of all attempts so far, each once; `now` is this attempt's."""
    return history if now in history else [*history, now]


def exactness(history: list[dict[str, Any]], deterministic: bool) -> tuple[str, str]:
    """Return ("bitwise" or "sequence", the reason) for a run with these environments.

    history: at least one environment, from `extended`.
    """
    if not deterministic:
        return "sequence", "train.deterministic is off, so operators may vary from run to run"
    first = history[0]
    for other in history[1:]:
        for name in sorted(first.keys() | other.keys()):
            if name != "ranks" and first.get(name) != other.get(name):
                return "sequence", f"{name} was {first.get(name)}, then {other.get(name)}"
        return "sequence", "some ranks ran on another kind of processor or library version"
    return "bitwise", "deterministic operators, and one environment in every attempt"
