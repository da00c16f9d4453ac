"""Compares files of final states, tensor by tensor where torch or safetensors can read them.

    python compare_files.py < REQUEST

REQUEST, in JSON: for each run, by the name of each file, its path and that of the reference. The
answer, in JSON, has for each run the fields of `final_state.Difference`.
"""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any


def flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each tensor and plain value in nested containers, with its key."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from flat(each, f"{key}.{name}" if key else str(name))
    elif isinstance(value, (list, tuple)):
        for place, each in enumerate(value):
            yield from flat(each, f"{key}[{place}]")
    else:
        yield key, value


def load(path: Path) -> dict[str, Any]:
    """Return tensors and values of a file by their keys. Raises: whatever its reader raises.

    The training of the user has just written the file, so its pickles may be loaded.
    """
    if path.suffix == ".safetensors":
        return dict(import_module("safetensors.torch").load_file(path))
    if path.suffix in (".npz", ".npy"):
        state = import_module("numpy").load(path)
        state = dict(state) if path.suffix == ".npz" else state
    elif path.suffix in (".pkl", ".pickle"):
        state = pickle.loads(path.read_bytes())
    else:
        read = partial(import_module("torch").load, path, map_location="cpu")
        try:
            state = read(weights_only=True)
        except pickle.UnpicklingError:
            state = read(weights_only=False)
    return {key: as_tensor(each) for key, each in flat(state)}


def as_tensor(value: Any) -> Any:
    """Return a value; a tensor in place of an array of NumPy whose numbers torch has, too."""
    known = ("bool", "int", "uint8", "float16", "float32", "float64", "complex")
    if type(value).__name__ != "ndarray" or not str(value.dtype).startswith(known):
        return value
    return import_module("torch").from_numpy(value.astype(value.dtype.newbyteorder("=")))


def difference(ours: Any, theirs: Any) -> float | None:
    """Return how much two tensors differ at most; infinite if they cannot be compared.

    None if they have the same bits.
    """
    torch = import_module("torch")
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return float("inf")
    pair = [getattr(each, "to_local", lambda each=each: each)() for each in (ours, theirs)]
    if torch.equal(*(each.contiguous().reshape(-1).view(torch.uint8) for each in pair)):
        return None
    ours, theirs = (each.double() for each in pair)
    by = (ours - theirs).abs().max().item()
    return float("inf") if by != by else float(by)


def compare(path: Path, reference: Path) -> tuple[list[tuple[bool, float, str]], list[str]]:
    """Return the tensors in which a file differs, and the keys of other values.

    Of each tensor whether it has fractions: what differs most is no check sum in a tensor of bytes.
    """
    if path.read_bytes() == reference.read_bytes():
        return [], []
    try:
        ours, theirs = load(path), load(reference)
    except Exception:  # then the bytes are compared
        return [(True, float("inf"), "the bytes")], []
    tensors, values = [], []
    for key in {**ours, **theirs}:
        mine: Any = ours.get(key)
        other: Any = theirs.get(key)
        if hasattr(mine, "untyped_storage") and hasattr(other, "untyped_storage"):
            if (by := difference(mine, other)) is not None:
                tensors.append((mine.is_floating_point(), by, key))
        elif repr(mine) != repr(other):
            values.append(key)
    return tensors, values


def compare_run(files: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    """Return how the files of a run differ."""
    found: dict[str, Any] = {"tensors": 0, "most": "", "by": 0.0, "values": [], "missing": ""}
    for name, (path, reference) in files.items():
        if not Path(path).exists():
            found["missing"] = found["missing"] or name
            continue
        tensors, values = compare(Path(path), Path(reference))
        found["values"] += [f"{name}: {key}" for key in values]
        _, by, most = max(tensors, default=(False, 0.0, ""))
        if tensors and (by > found["by"] or not found["tensors"]):
            found |= {"most": f"{name}: {most}", "by": by}
        found["tensors"] += len(tensors)
    return found


if __name__ == "__main__":
    json.dump({run: compare_run(files) for run, files in json.load(sys.stdin).items()}, sys.stdout)
