"""Write the weights of a verified checkpoint as one safetensors file.

    python -m trainer.export RUN_DIR [--checkpoint best|latest|step-XXXXXXXX] [--out FILE]

RUN_DIR may also be a checkpoint's own directory. The file's path is printed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import safetensors.torch

from jobs.rundir import checkpoint_names, checkpoint_step, fsync_directory
from trainer.checkpoint import reader
from trainer.checkpoint.digest import tensors_sha256
from trainer.checkpoint.manifest import BEST, MANIFEST
from trainer.checkpoint.state import parse
from trainer.checkpoint.weights import newest, tensors_of
from trainer.errors import EXIT_FAILED, EXIT_USER_ERROR, UserError

DEFAULT_NAME = "weights.safetensors"


def main(arguments: Sequence[str] | None = None) -> int:
    """Export as the command line says; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m trainer.export", description=__doc__)
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    parser.add_argument("--checkpoint", default="latest", metavar="best|latest|step-XXXXXXXX")
    parser.add_argument("--out", type=Path, help=f"RUN_DIR/{DEFAULT_NAME} if left out")
    options = parser.parse_args(arguments)
    try:
        directory = find(options.run_dir.resolve(), options.checkpoint)
        print(export(directory, options.out or directory.parents[1] / DEFAULT_NAME))
    except (UserError, reader.Damaged, OSError) as error:
        print(f"export: error: {error}", file=sys.stderr)
        return EXIT_USER_ERROR if isinstance(error, UserError) else EXIT_FAILED
    return 0


def find(path: Path, checkpoint: str) -> Path:
    """The directory of the checkpoint that is meant; `latest` is the newest one there is."""
    if (path / MANIFEST).exists():
        return path
    if checkpoint == "latest":
        return newest(path)
    root, name = path / "checkpoints", checkpoint
    if checkpoint == "best":
        hint = root / BEST
        name = hint.read_text(encoding="utf-8").strip() if hint.exists() else "no best checkpoint"
    if checkpoint_step(name) is None or not (root / name).is_dir():
        there = ", ".join(checkpoint_names(root)) if root.is_dir() else ""
        raise UserError(f"{path} has no checkpoint {name}: there are {there or 'none'}")
    return root / name


def export(directory: Path, out: Path) -> Path:
    """Verify a checkpoint and write its weights to `out`, which appears whole; the path of it.

    Raises: Damaged if the checkpoint is not as it was written.
    """
    try:
        manifest, contents = reader.read(directory)
        model = tensors_of(parse(contents)["model"])
    except reader.Damaged as error:
        raise reader.Damaged(f"checkpoint {directory} is damaged: {error}") from error
    metadata = {
        "format": "pt",
        "run_id": str(manifest["run_id"]),
        "global_step": str(manifest["global_step"]),
        "weights_sha256": tensors_sha256(model),
    }
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        safetensors.torch.save_file(model, temporary, metadata)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, out)
    finally:
        temporary.unlink(missing_ok=True)
    fsync_directory(out.parent)
    return out


if __name__ == "__main__":
    sys.exit(main())
