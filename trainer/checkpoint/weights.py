"""Weights without the rest of a training: read from files, and loaded into a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import nn

from slurm_job_kit.jobs.checkpoint_names import checkpoint_names
from slurm_job_kit.trainer.checkpoint.state import check_same_tensors, parse
from slurm_job_kit.trainer.errors import UserError
from slurm_job_kit.trainer.storage import reader
from slurm_job_kit.trainer.storage.manifest import MANIFEST


def read_initial(path: Path) -> dict[str, torch.Tensor]:
    """Return the weights that `train.init_from` names, on the CPU.

    path: a safetensors file, a checkpoint, or a run directory (its newest checkpoint).
    """
    try:
        if not path.is_dir():
            return safetensors.torch.load_file(path)
        directory = path if (path / MANIFEST).exists() else newest(path)
        with reader.Contents.open(directory) as contents:
            return tensors_of(parse(contents)["model"])
    except safetensors.SafetensorError as error:
        raise UserError(f"train.init_from: {path} is not a safetensors file: {error}") from error
    except (OSError, reader.Damaged) as error:
        raise UserError(f"train.init_from: cannot read {path}: {error}") from error


def newest(run_dir: Path) -> Path:
    """Return the newest committed checkpoint of a run directory, which may be damaged."""
    root = run_dir / "checkpoints"
    names = checkpoint_names(root) if root.is_dir() else []
    if not names:
        raise UserError(f"{run_dir} has no checkpoint")
    return root / names[0]


def load_initial(module: nn.Module, weights: dict[str, torch.Tensor], path: str) -> None:
    """Load weights into a model with the same tensors. Raises: UserError, which names `path`."""
    check_same_tensors(weights, module.state_dict(), f"train.init_from {path} is")
    module.load_state_dict(weights)


def tensors_of(model: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the tensors of a model's state, contiguous as safetensors requires it."""
    return {
        name: value.contiguous() for name, value in model.items() if isinstance(value, torch.Tensor)
    }
