"""Write the weights of a checkpoint as safetensors.

    python -m trainer.plugins.export CHECKPOINT [--out PATH]

CHECKPOINT is its directory. PATH is the file to write, or an existing directory, in which the file
is model.safetensors. Weights of more than MAX_FILE_BYTES become several files beside it, and an
index; at most the tensors of one file are in memory.

Prints the path of the file or of the index to stdout; step and metrics of the checkpoint, and
whether the run is finished, to stderr.
"""

import argparse
import hashlib
import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import safetensors
import safetensors.torch

from ....jobs.base.console import escape_output
from ....jobs.contract.checkpoint.part_file import INDEX_SUFFIX, MODEL_NAME, SUFFIX
from ....jobs.contract.records.training import Result
from ...checkpoint import digest, outline
from ...checkpoint.outline import tensors_of
from ...checkpoint.share import in_buckets
from ...contract import Manifest, RunDir, files, reader, records
from ...errors import EXIT_FAILED, EXIT_USER_ERROR, UserError

# Of the tensors in a file, in bytes. Source: huggingface_hub, save_torch_state_dict(), 5GB.
MAX_FILE_BYTES = 5 * 10**9


def main(arguments: Sequence[str] | None = None) -> int:
    """Export what the command line names; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m trainer.plugins.export")
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT")
    parser.add_argument("--out", type=Path, metavar="PATH", help="default: RUN_DIR/weights")
    options = parser.parse_args(arguments)
    directory = options.checkpoint.resolve()
    run_dir = RunDir(directory.parent.parent)
    try:
        manifest, path = export(directory, options.out or run_dir.path / f"weights{SUFFIX}")
        result = records.read(Result, run_dir.result)
    except (UserError, reader.DamageError, OSError, safetensors.SafetensorError) as error:
        print(f"export: error: {error}", file=sys.stderr)
        return EXIT_USER_ERROR if isinstance(error, UserError) else EXIT_FAILED
    known = (f"{k} {value:.4g}" for k, value in manifest.metrics.items() if value is not None)
    metrics = ", ".join(known) or "no metrics yet"
    print(f"weights after step {manifest.global_step}: {metrics}", file=sys.stderr)
    if result is None or result.status != "completed":
        what = f"run {manifest.run_id} is not finished; a later step may be better"
        print(f"warning: {what}", file=sys.stderr)
    print(path)
    return 0


def export(directory: Path, out: Path) -> tuple[Manifest, Path]:
    """Write the weights of a checkpoint to the file `out`, or into the directory `out`.

    Returns its manifest, and the path of the file or of the index of several.
    Raises: UserError; DamageError if a file is not as it was written; OSError; SafetensorError.
    """
    out = out / f"{MODEL_NAME}{SUFFIX}" if out.is_dir() else out
    index = out.with_name(f"{out.name.removesuffix(SUFFIX)}{INDEX_SUFFIX}")
    if index.exists():  # a reader would take its files, and they may be another model's
        raise UserError(f"{index} exists: delete those weights first, or write elsewhere by --out")
    try:
        contents = reader.Contents(directory, reader.check(directory))
        return contents.manifest, _write(contents, out, index)
    except reader.DamageError as error:
        what = f"checkpoint {directory} is damaged: {error}\n  hint: choose another checkpoint"
        raise reader.DamageError(what) from error


def _write(contents: reader.Contents, out: Path, index: Path) -> Path:
    """Write one file, or several and then their index in the layout that Hugging Face reads.

    X.safetensors becomes X-00001-of-0000N.safetensors ... and X.safetensors.index.json.
    Source: huggingface_hub, "Serialization", split_torch_state_dict_into_shards().
    """
    manifest, model = contents.manifest, tensors_of(outline.read(contents)["model"])
    metadata = {"format": "pt", "run_id": manifest.run_id, "global_step": str(manifest.global_step)}
    sizes = {name: math.prod(each.shape) * each.dtype.itemsize for name, each in model.items()}
    # In the order of `weights_sha256`.
    parts = [*in_buckets(sorted(sizes), sizes.__getitem__, MAX_FILE_BYTES)] or [[]]
    sha256, size, places = hashlib.sha256(), 0, dict[str, str]()
    stem = out.name.removesuffix(SUFFIX)
    for number, names in enumerate(parts, 1):
        stored = {name: model[name] for name in names}
        tensors = outline.whole(stored, contents, is_checked=True)
        size += sum(tensor.nbytes for tensor in tensors.values())
        for name in names:
            digest.update(sha256, name, tensors[name])
        path, more = out, {"weights_sha256": sha256.hexdigest()}
        if len(parts) > 1:
            path, more = out.with_name(f"{stem}-{number:05d}-of-{len(parts):05d}{SUFFIX}"), {}
        with files.replacing(path) as temporary:
            safetensors.torch.save_file(tensors, temporary, metadata | more)
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
        places |= dict.fromkeys(names, path.name)
        tensors.clear()  # before those of the next file are read
    if len(parts) > 1:
        about = {"total_size": size, **metadata, "weights_sha256": sha256.hexdigest()}
        text = json.dumps({"metadata": about, "weight_map": places}, indent=2)
        with files.replacing(index) as temporary:
            files.write_durable(temporary, f"{text}\n")
    files.fsync_directory(out.parent)
    return index if len(parts) > 1 else out


if __name__ == "__main__":
    escape_output()
    sys.exit(main())
