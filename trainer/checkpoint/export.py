"""Write the weights of a checkpoint as safetensors, or weights and optimizer in torch's format.

    python -m trainer.checkpoint.export RUN_DIR [--checkpoint NAME] [--out PATH] [--dcp]

NAME is best, latest (the default) or step-XXXXXXXX. RUN_DIR may also be the directory of a
checkpoint. PATH is the file to write, or an existing directory, in which the file is
model.safetensors. Weights of more than MAX_FILE_BYTES become several files beside it, and an index;
at most the tensors of one file are in memory. With --dcp PATH is the directory to write, and
weights and optimizer are in memory.

Prints the path of the file, the index or the directory to stdout; step and metrics of the
checkpoint, and whether the run is finished, to stderr.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import safetensors
import safetensors.torch
import torch

from ..contract import (
    MALFORMED,
    MANIFEST,
    SUFFIX,
    Manifest,
    Result,
    RunDir,
    find_checkpoint,
    fsync_directory,
    reader,
    records,
    replacing,
    shared_files,
    write_durable,
)
from ..errors import EXIT_FAILED, EXIT_USER_ERROR, UserError
from . import digest, outline
from .outline import StoredTensor
from .weights import INDEX_SUFFIX, MODEL_NAME, tensors_of

DEFAULT_NAME, DEFAULT_DCP_NAME = f"weights{SUFFIX}", "dcp"
# Of the tensors in a file, in bytes. Source: huggingface_hub, save_torch_state_dict(), 5GB.
MAX_FILE_BYTES = 5 * 10**9

Model = Mapping[str, StoredTensor]


class Export(NamedTuple):
    """What was written. path: of the file, or of the index of several, or a directory."""

    manifest: Manifest
    path: Path
    num_files: int = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Export what the command line names; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m trainer.checkpoint.export")
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    parser.add_argument("--checkpoint", default="latest", metavar="best|latest|step-XXXXXXXX")
    defaults = f"default: {DEFAULT_NAME} in RUN_DIR, {DEFAULT_DCP_NAME} with --dcp"
    parser.add_argument("--out", type=Path, metavar="PATH", help=defaults)
    help_of_dcp = "a directory of torch.distributed.checkpoint, with the optimizer"
    parser.add_argument("--dcp", action="store_true", help=help_of_dcp)
    options = parser.parse_args(arguments)
    try:
        directory = find(options.run_dir.resolve(), options.checkpoint)
        run_dir = RunDir(directory.parent.parent)
        is_copy = directory.parent.name != run_dir.checkpoints.name
        is_done = is_copy or is_finished(run_dir)
        name = DEFAULT_DCP_NAME if options.dcp else DEFAULT_NAME
        write = export_dcp if options.dcp else export
        exported = write(directory, options.out or run_dir.path / name)
    except (UserError, reader.DamageError, OSError, safetensors.SafetensorError) as error:
        print(f"export: error: {error}", file=sys.stderr)
        return EXIT_USER_ERROR if isinstance(error, UserError) else EXIT_FAILED
    print(describe(exported.manifest, is_done), file=sys.stderr)
    if exported.num_files > 1:
        print(f"in {exported.num_files} files, with the index:", file=sys.stderr)
    print(exported.path)
    return 0


def find(path: Path, checkpoint: str) -> Path:
    """Return the directory of a checkpoint, which `path` or a name in that run directory names."""
    if shared_files.is_file(path / MANIFEST):
        return path
    root = RunDir(path).checkpoints
    return root / find_checkpoint(root, checkpoint)


def export(directory: Path, out: Path) -> Export:
    """Write the weights of a checkpoint to the file `out`, or into the directory `out`.

    Each byte is verified before any file gets its name.
    Raises: DamageError if a file is not as it was written; OSError; SafetensorError.
    """
    out = out / f"{MODEL_NAME}{SUFFIX}" if out.is_dir() else out
    _check_parent(out)
    with _opened(directory) as contents:
        manifest = contents.manifest
        model = tensors_of(outline.read(contents)["model"])
        files = split(model)
        metadata = {
            "format": "pt",
            "run_id": manifest.run_id,
            "global_step": str(manifest.global_step),
        }
        if len(files) == 1:
            path = _write_one(model, contents, out, metadata)
        else:
            path = _write_several(model, contents, out, metadata)
    return Export(manifest, path, len(files))


def export_dcp(directory: Path, out: Path) -> Export:
    """Write weights and optimizer of a checkpoint to the new directory `out`.

    An earlier export with that name is replaced. Raises: UserError; DamageError; OSError.
    """
    # torch.distributed.checkpoint takes a second to import.
    from . import dcp

    _check_parent(out)
    with _opened(directory) as contents:
        values = outline.read(contents)
        names = "model", "optimizer", "parameter_names"
        values_by_name = {name: outline.whole(values[name], contents) for name in names}
        dcp.write(
            values_by_name["model"],
            values_by_name["optimizer"],
            values_by_name["parameter_names"],
            out,
        )
        return Export(contents.manifest, out)


@contextmanager
def _opened(directory: Path) -> Iterator[reader.Contents]:
    try:
        with reader.Contents.open(directory) as contents:
            yield contents
    except reader.DamageError as error:
        raise reader.DamageError(
            f"checkpoint {directory} is damaged: {error}\n  hint: choose another checkpoint"
        ) from error


def _check_parent(out: Path) -> None:
    if not out.parent.is_dir():
        raise UserError(f"--out {out}: there is no directory {out.parent}: make it first")


def split(model: Model) -> list[list[str]]:
    """Return the names of the tensors of each file, in the order of `weights_sha256`.

    A file is filled until the next tensor would make it larger than MAX_FILE_BYTES; a larger tensor
    is alone.
    """
    files: list[list[str]] = [[]]
    size = 0
    for name in sorted(model):
        nbytes = math.prod(model[name].shape) * model[name].dtype.itemsize
        if files[-1] and size + nbytes > MAX_FILE_BYTES:
            files.append([])
            size = 0
        files[-1].append(name)
        size += nbytes
    return files


def _write_one(
    model: Model, contents: reader.Contents, out: Path, metadata: Mapping[str, str]
) -> Path:
    tensors = {name: value.read(contents) for name, value in model.items()}
    metadata = {**metadata, "weights_sha256": digest.tensors_sha256(tensors)}
    earlier = _earlier(out)
    with replacing(out) as temporary:
        _save(tensors, temporary, metadata)
    _remove(earlier - {out})
    fsync_directory(out.parent)
    return out


def _write_several(
    model: Model, contents: reader.Contents, out: Path, metadata: Mapping[str, str]
) -> Path:
    """Write files and index in the layout that Hugging Face reads; return the path of the index.

    X.safetensors becomes X-00001-of-0000N.safetensors ... and X.safetensors.index.json. While the
    files get their names there is no index, so no reader takes some of this export and some of an
    earlier one.
    Source: huggingface_hub, "Serialization", split_torch_state_dict_into_shards().
    """
    files, stem = split(model), out.name.removesuffix(SUFFIX)
    paths = [
        out.with_name(f"{stem}-{number:05d}-of-{len(files):05d}{SUFFIX}")
        for number in range(1, len(files) + 1)
    ]
    index = out.with_name(f"{stem}{INDEX_SUFFIX}")
    sha256, size, earlier = hashlib.sha256(), 0, _earlier(out)
    with ExitStack() as renames:  # at its end, from the last to the first
        temporary_index = renames.enter_context(replacing(index))
        for path, names in zip(paths, files, strict=True):
            temporary = renames.enter_context(replacing(path))
            tensors = {name: model[name].read(contents) for name in names}
            size += sum(tensor.nbytes for tensor in tensors.values())
            for name in names:
                digest.update(sha256, name, tensors[name])
            _save(tensors, temporary, metadata)
            tensors.clear()  # before those of the next file are read
        more = {"total_size": size, **metadata, "weights_sha256": sha256.hexdigest()}
        places = {
            name: path.name for path, names in zip(paths, files, strict=True) for name in names
        }
        text = json.dumps({"metadata": more, "weight_map": places}, indent=2)
        write_durable(temporary_index, f"{text}\n")
        _remove({out, *earlier} - {*paths})
    fsync_directory(out.parent)
    return index


def _save(tensors: dict[str, torch.Tensor], path: Path, metadata: Mapping[str, str]) -> None:
    safetensors.torch.save_file(tensors, path, dict(metadata))
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _earlier(out: Path) -> set[Path]:
    """Return the index of an earlier export to `out`, and the files that it lists.

    Raises: UserError where the index is not of an export: its files are somebody else's.
    """
    index = out.with_name(f"{out.name.removesuffix(SUFFIX)}{INDEX_SUFFIX}")
    if not index.exists():
        return set()
    try:
        values = json.loads(index.read_bytes())
        names = {Path(name).name for name in values["weight_map"].values()}
        is_own = {"run_id", "weights_sha256"} <= values["metadata"].keys()
    except MALFORMED:
        is_own, names = False, set()
    if not is_own:
        raise UserError(f"{index} was not written by an export: choose another place with --out")
    return {index, *(out.with_name(name) for name in names)}


def _remove(paths: set[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


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
