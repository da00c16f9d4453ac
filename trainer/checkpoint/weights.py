"""Weights without the training around them: read, compared with a model, and loaded into it."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import nn

from jobs.rundir import checkpoint_names
from trainer.checkpoint import commit, reader
from trainer.checkpoint.staging import is_plain
from trainer.errors import UserError

STATE = "state.pt"
ZIP = b"PK\3\4"  # the older format is a bare pickle, which torch.load would take as well


def parse(contents: reader.Contents) -> dict[str, Any]:
    """The state in a checkpoint's files, on the CPU; anything but tensors and values is damage."""
    if STATE not in contents:
        raise reader.Damaged(f"it has no {STATE}")
    if not contents[STATE].startswith(ZIP):
        raise reader.Damaged(f"{STATE} is not of the format that torch.save writes")
    try:
        state = torch.load(io.BytesIO(contents[STATE]), map_location="cpu", weights_only=True)
    # Which of them comes depends on where in the file the parser stumbles.
    except (pickle.UnpicklingError, RuntimeError, ValueError, LookupError, EOFError) as error:
        reason = str(error).partition("\n")[0]
        raise reader.Damaged(f"{STATE} holds more than weights: {reason}") from error
    if not isinstance(state, dict) or not is_plain(state):
        raise reader.Damaged(f"{STATE} holds more than tensors and plain values")
    return state


def read_initial(path: Path) -> bytes:
    """The weights that `train.init_from` means, in the format of safetensors."""
    try:
        if not path.is_dir():
            return path.read_bytes()
        directory = path if (path / commit.MANIFEST).exists() else newest(path)
        _, contents = reader.read(directory)
        return safetensors.torch.save(tensors_of(parse(contents)["model"]))
    except (OSError, reader.Damaged) as error:
        raise UserError(f"train.init_from: cannot read {path}: {error}") from error


def newest(run_dir: Path) -> Path:
    """The newest committed checkpoint of a run directory, whole or not."""
    root = run_dir / "checkpoints"
    names = checkpoint_names(root) if root.is_dir() else []
    if not names:
        raise UserError(f"{run_dir} has no checkpoint")
    return root / names[0]


def load_initial(module: nn.Module, data: bytes, path: str) -> None:
    """Load weights in the format of safetensors into a model that has exactly these."""
    try:
        weights = safetensors.torch.load(data)
    except safetensors.SafetensorError as error:
        raise UserError(f"train.init_from: {path} is no safetensors file: {error}") from error
    check_same_tensors(weights, module, f"train.init_from {path} is")
    module.load_state_dict(weights)


def check_same_tensors(saved: Mapping[str, Any], module: nn.Module, whose: str) -> None:
    """Name the first difference between saved tensors and a model's as the user's error."""
    own = module.state_dict()
    for name in [*own, *saved]:
        sides = [
            f"{name} {tuple(getattr(state[name], 'shape', ()))}" if name in state else f"no {name}"
            for state in (saved, own)
        ]
        if sides[0] != sides[1]:
            raise UserError(
                f"{whose} of another model: it has {sides[0]}, train.model has {sides[1]}"
            )


def tensors_of(model: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors of a model's state, laid out as safetensors wants them."""
    return {
        name: value.contiguous() for name, value in model.items() if isinstance(value, torch.Tensor)
    }
