"""Compares files of final states, tensor by tensor where torch or safetensors can read them.

    python compare_files.py < REQUEST

REQUEST, in JSON: a list of [name, path, path of the reference]. The answer, in JSON, has for each
name null without a file, or `tensors`: the number of those that differ, the one that differs most,
and by how much; and `values`: the keys of what else differs.
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


def difference(ours: Any, theirs: Any) -> tuple[bool, float] | None:
    """Return whether two tensors are of numbers with a fraction, and how much they differ at most.

    None if they have the same bits; infinite if they cannot be compared.
    """
    torch = import_module("torch")
    is_fraction = ours.is_floating_point()
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return is_fraction, float("inf")
    pair = [getattr(each, "to_local", lambda each=each: each)() for each in (ours, theirs)]
    if torch.equal(*(each.contiguous().reshape(-1).view(torch.uint8) for each in pair)):
        return None
    ours, theirs = (each.double() for each in pair)
    by = (ours - theirs).abs().max().item()
    return is_fraction, float("inf") if by != by else float(by)


def compare(path: Path, reference: Path) -> dict[str, Any] | None:
    """Return how a file differs from that of the reference."""
    if not path.exists():
        return None
    if path.read_bytes() == reference.read_bytes():
        return {"tensors": [0, "", 0.0], "values": []}
    try:
        ours, theirs = load(path), load(reference)
    except Exception:  # then the bytes are compared
        return {"tensors": [1, "the bytes", float("inf")], "values": []}
    differing, values = [], []
    for key in {**ours, **theirs}:
        mine: Any = ours.get(key)
        other: Any = theirs.get(key)
        if hasattr(mine, "untyped_storage") and hasattr(other, "untyped_storage"):
            if (found := difference(mine, other)) is not None:
                # A check sum in a tensor of bytes is not what differs most.
                differing.append((*found, key))
        elif repr(mine) != repr(other):
            values.append(key)
    _, by, most = max(differing, default=(False, 0.0, ""))
    return {"tensors": [len(differing), most, by], "values": values[:MAX_VALUES]}


if __name__ == "__main__":
    pairs = json.load(sys.stdin)
    json.dump({name: compare(Path(path), Path(other)) for name, path, other in pairs}, sys.stdout)
