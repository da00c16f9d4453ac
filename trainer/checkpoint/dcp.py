"""Writes weights and optimizer in the format of torch.distributed.checkpoint (DCP)."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save

from ..contract import fsync_directory
from ..errors import UserError

INDEX, SUFFIX = ".metadata", ".distcp"  # the files of such a directory


def write(
    model: dict[str, Any], optimizer: dict[str, Any], names: Sequence[str | None], out: Path
) -> None:
    """Write both, as one process without a process group, to the directory `out`.

    model, optimizer: their `state_dict()` with whole tensors.
    names: of the optimizer's parameters, in the order of its groups.
    Raises: UserError where a parameter has no name, or `out` holds something else.
    """
    if os.path.lexists(out) and not _is_export(out):
        raise UserError(f"--out {out} holds something else: name a directory that is not there yet")
    state = {"model": model, "optim": _by_name(optimizer, names)}
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # as is meant here
            # The writer calls fsync for each file.
            save(state, storage_writer=FileSystemWriter(temporary), no_dist=True)
        fsync_directory(temporary)
        if out.exists():
            shutil.rmtree(out)
        temporary.rename(out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    fsync_directory(out.parent)


def _is_export(path: Path) -> bool:
    """Return whether a directory holds nothing but such an export, or nothing."""
    if path.is_symlink() or not path.is_dir():
        return False
    return all(each.name == INDEX or each.suffix == SUFFIX for each in path.iterdir())


def _by_name(optimizer: dict[str, Any], names: Sequence[str | None]) -> dict[str, Any]:
    """Return the state as `get_state_dict()` returns it, with and without its option to flatten.

    The two differ in the options only: a list of groups, or one value for each parameter and key.
    Source: torch.distributed.checkpoint.state_dict, flatten_optimizer_state_dict (torch 2.13).
    """
    count = sum(len(group["params"]) for group in optimizer["param_groups"])
    if len(names) != count or None in names:
        raise UserError(
            "the checkpoint does not name every parameter of the optimizer, which torch's format "
            "needs: the optimizer has parameters that are not the model's. Without --dcp the "
            "weights alone are exported"
        )
    groups = [
        {**group, "params": [names[index] for index in group["params"]]}
        for group in optimizer["param_groups"]
    ]
    return {
        "state": {names[index]: values for index, values in optimizer["state"].items()},
        "param_groups": groups,
        **{
            f"param_groups.{name}.{key}": value
            for group in groups
            for name in group["params"]
            for key, value in group.items()
            if key != "params"
        },
    }
