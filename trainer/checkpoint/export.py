"""Write the weights of a checkpoint as one safetensors file.

    python -m trainer.checkpoint.export RUN_DIR [--checkpoint NAME] [--out FILE]

NAME is best, latest (the default) or step-XXXXXXXX. RUN_DIR may also be the directory of a
checkpoint. Prints the path of the file to stdout; step and metrics of the checkpoint, and whether
the run is finished, to stderr.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import safetensors.torch

from slurm_job_kit.jobs import records
from slurm_job_kit.jobs.checkpoint_names import checkpoint_names, checkpoint_step
from slurm_job_kit.jobs.records.training import Result
from slurm_job_kit.jobs.rundir import RunDir, fsync_directory
from slurm_job_kit.trainer.checkpoint.digest import tensors_sha256
from slurm_job_kit.trainer.checkpoint.state import parse
from slurm_job_kit.trainer.checkpoint.weights import newest, tensors_of
from slurm_job_kit.trainer.errors import EXIT_FAILED, EXIT_USER_ERROR, UserError
from slurm_job_kit.trainer.storage import reader
from slurm_job_kit.trainer.storage.manifest import BEST, MANIFEST, Manifest

DEFAULT_NAME = "weights.safetensors"


def main(arguments: Sequence[str] | None = None) -> int:
    """Export what the command line names; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m trainer.checkpoint.export")
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    parser.add_argument("--checkpoint", default="latest", metavar="best|latest|step-XXXXXXXX")
    parser.add_argument("--out", type=Path, help=f"default: RUN_DIR/{DEFAULT_NAME}")
    options = parser.parse_args(arguments)
    try:
        directory = find(options.run_dir.resolve(), options.checkpoint)
        run_dir = RunDir(directory.parent.parent)
        is_copy = directory.parent.name != run_dir.checkpoints.name
        is_done = is_copy or is_finished(run_dir)
        out = options.out or run_dir.path / DEFAULT_NAME
        manifest = export(directory, out)
    except (UserError, reader.Damaged, OSError) as error:
        print(f"export: error: {error}", file=sys.stderr)
        return EXIT_USER_ERROR if isinstance(error, UserError) else EXIT_FAILED
    print(describe(manifest, is_done), file=sys.stderr)
    print(out)
    return 0


def find(path: Path, checkpoint: str) -> Path:
    """Return the directory of a checkpoint; "latest" is the newest one in the folder."""
    if (path / MANIFEST).exists():
        return path
    if checkpoint == "latest":
        return newest(path)
    root, name = path / "checkpoints", checkpoint
    if checkpoint == "best":
        pointer = root / BEST
        name = pointer.read_text(encoding="utf-8").strip() if pointer.exists() else "best"
    if checkpoint_step(name) is None or not (root / name).is_dir():
        names = ", ".join(checkpoint_names(root)) if root.is_dir() else ""
        raise UserError(f"{path} has no checkpoint {name}; it has {names or 'none'}")
    return root / name


def export(directory: Path, out: Path) -> Manifest:
    """Verify a checkpoint and write its weights to `out` in one rename; return the manifest.

    Not jobs.rundir.write_atomic, because safetensors writes the file by itself.
    Raises: Damaged if a file of the checkpoint is not as it was written.
    """
    try:
        with reader.Contents.open(directory) as contents:
            manifest = contents.manifest
            model = tensors_of(parse(contents)["model"])
    except reader.Damaged as error:
        raise reader.Damaged(f"checkpoint {directory} is damaged: {error}") from error
    metadata = {
        "format": "pt",
        "run_id": manifest.run_id,
        "global_step": str(manifest.global_step),
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
    return manifest


def is_finished(run_dir: RunDir) -> bool:
    """Return whether the run has completed all its steps."""
    result = records.read(Result, run_dir.result)
    return result is not None and result.status == "completed"


def describe(manifest: Manifest, is_run_finished: bool) -> str:
    """Return a line with step and metrics, and a second line if the run is not finished."""
    values = [(each.name, each.value) for each in manifest.metrics if each.value is not None]
    metrics = [f"{name} {value:.4g}" for name, value in values]
    text = f"weights after step {manifest.global_step}: {', '.join(metrics) or 'no metrics yet'}"
    if is_run_finished:
        return text
    return f"{text}\nwarning: run {manifest.run_id} is not finished; a later step may be better"


if __name__ == "__main__":
    sys.exit(main())
