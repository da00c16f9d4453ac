"""Compares files of final states, tensor by tensor where torch or safetensors can read them.

    python compare_files.py < REQUEST

REQUEST, in JSON: `pairs`, a list of [name, path, path of the reference]. The answer, in JSON, has
for each name: `how` (tensors or bytes), `tensors`: the number of those that differ, the one that
differs most, and by how much; `values`: what else differs, as [key, value, value of the reference].
"""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

MAX_VALUES = 1000


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
        found = import_module("numpy").load(path)
        return with_tensors(flat(dict(found) if path.suffix == ".npz" else found))
    if path.suffix in (".pkl", ".pickle"):
        return with_tensors(flat(pickle.loads(path.read_bytes())))
    read = partial(import_module("torch").load, path, map_location="cpu")
    try:
        state = read(weights_only=True)
    except pickle.UnpicklingError:
        state = read(weights_only=False)
    return with_tensors(flat(state))


def with_tensors(found: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return the values by their keys, with tensors in place of NumPy's arrays."""
    torch = import_module("torch")
    return {
        key: torch.from_numpy(each.astype(each.dtype.newbyteorder("="))) if is_array(each) else each
        for key, each in found
    }


def is_array(value: Any) -> bool:
    """Return whether a value is an array of NumPy with numbers that torch has, too."""
    known = ("bool", "int", "uint8", "float16", "float32", "float64", "complex")
    return type(value).__name__ == "ndarray" and str(value.dtype).startswith(known)


def distance(ours: Any, theirs: Any) -> float:
    """Return the largest difference of two tensors; infinite if they cannot be compared."""
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return float("inf")
    ours, theirs = (getattr(each, "to_local", lambda each=each: each)() for each in (ours, theirs))
    difference = (ours.double() - theirs.double()).abs().max().item()
    return float("inf") if difference != difference else float(difference)


def is_equal(ours: Any, theirs: Any) -> bool:
    """Return whether two tensors have the same bits."""
    torch = import_module("torch")
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return False
    pair = [each.contiguous().reshape(-1).view(torch.uint8) for each in (ours, theirs)]
    return bool(torch.equal(*pair))


def compare(path: Path, reference: Path) -> dict[str, Any]:
    """Return how a file differs from that of the reference."""
    if not path.exists():
        return {"how": "missing", "tensors": [0, "", 0.0], "values": []}
    if path.read_bytes() == reference.read_bytes():
        return {"how": "bytes", "tensors": [0, "", 0.0], "values": []}
    try:
        ours, theirs = load(path), load(reference)
    except Exception as error:
        why = f"compared by bytes: {type(error).__name__}"
        return {"how": why, "tensors": [1, "the bytes", float("inf")], "values": []}
    differing, values = [], []
    for key in {**ours, **theirs}:
        mine: Any = ours.get(key)
        other: Any = theirs.get(key)
        if hasattr(mine, "untyped_storage") and hasattr(other, "untyped_storage"):
            if not is_equal(mine, other):
                # A check sum in a tensor of bytes is not what differs most.
                differing.append((mine.is_floating_point(), distance(mine, other), key))
        elif repr(mine) != repr(other):
            values.append([key, repr(mine)[:60], repr(other)[:60]])
    _, by, most = max(differing, default=(False, 0.0, ""))
    tensors = [len(differing), most, by]
    return {"how": "tensors", "tensors": tensors, "values": values[:MAX_VALUES]}


if __name__ == "__main__":
    request = json.load(sys.stdin)
    pairs = request["pairs"]
    json.dump({name: compare(Path(path), Path(other)) for name, path, other in pairs}, sys.stdout)
