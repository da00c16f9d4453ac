"""Compares files of final states, tensor by tensor where torch or safetensors can read them.

    python compare_files.py < REQUEST

REQUEST, in JSON: for each run, by the name of each file, its path and that of the reference. The
answer, in JSON, has for each run and file the fields of `final_state.Difference`.
"""

from __future__ import annotations

import json
import pickle
import re
import sys
from argparse import Namespace
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path, PosixPath
from typing import Any

PICKLES = (".pkl", ".pickle")
# The arguments of a training, which many save, as timm does; to make one runs nothing.
PLAIN = (Namespace, PosixPath)
# How a pickle, a file of torch or of NumPy begins.
WITH_OBJECTS = (b"\x80", b"PK", b"\x93NUMPY")


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

    Nothing that a file has is run: only tensors, arrays and plain values are read.
    """
    if path.suffix == ".json":
        return dict(flat(json.loads(path.read_text(encoding="utf-8"))))
    if path.suffix == ".safetensors":
        return dict(import_module("safetensors.torch").load_file(path))
    if path.suffix in (".npz", ".npy"):
        state = import_module("numpy").load(path)
        state = dict(state) if path.suffix == ".npz" else state
    elif path.suffix in PICKLES:
        raise pickle.UnpicklingError("reading a pickle could run any code")
    else:
        torch = import_module("torch")
        with torch.serialization.safe_globals([*PLAIN, *parts_of_arrays()]):
            state = torch.load(path, map_location="cpu", weights_only=True)
    return {key: as_tensor(each) for key, each in flat(state)}


def parts_of_arrays() -> list[Any]:
    """Return what torch needs to load arrays of NumPy, such as a state of its random numbers."""
    if find_spec("numpy") is None:
        return []
    numpy = import_module("numpy")
    made_by = (each.__reduce__()[0] for each in (numpy.zeros(1), numpy.float64()))
    kinds = {type(numpy.dtype(each)) for each in numpy.typecodes["All"]}
    return [*made_by, numpy.ndarray, numpy.dtype, *kinds]


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


def why_unread(path: Path, error: Exception) -> str:
    """Return why the objects in a file cannot be compared; empty for a file without objects."""
    has_objects = path.suffix in PICKLES or path.read_bytes().startswith(WITH_OBJECTS)
    if not (has_objects and isinstance(error, (pickle.UnpicklingError, ValueError))):
        return ""
    if name := re.search(r"GLOBAL (\S+)", str(error)):
        return f"it has an object of {name[1]}, which torch.load(weights_only=True) refuses"
    return str(error).partition(". ")[0]


def compare(path: Path, reference: Path) -> tuple[list[tuple[bool, float, str]], list[str], str]:
    """Return the tensors in which a file differs, the keys of other values, and why not compared.

    Of each tensor whether it has fractions: what differs most is no check sum in a tensor of bytes.
    """
    if path.read_bytes() == reference.read_bytes():
        return [], [], ""
    try:
        ours, theirs = load(path), load(reference)
    except Exception as error:
        if why := why_unread(path, error):
            return [], [], why
        return [(True, float("inf"), "the bytes")], [], ""
    tensors, values = [], []
    for key in {**ours, **theirs}:
        mine: Any = ours.get(key)
        other: Any = theirs.get(key)
        if hasattr(mine, "untyped_storage") and hasattr(other, "untyped_storage"):
            if (by := difference(mine, other)) is not None:
                tensors.append((mine.is_floating_point(), by, key))
        elif repr(mine) != repr(other):
            values.append(key)
    return tensors, values, ""


def compare_file(name: str, path: str, reference: str) -> dict[str, Any]:
    if not Path(path).exists():
        return {"missing": name}
    tensors, values, why = compare(Path(path), Path(reference))
    _, by, most = max(tensors, default=(False, 0.0, ""))
    return {
        "tensors": len(tensors),
        "most": f"{name}: {most}" if tensors else "",
        "by": by,
        "values": [f"{name}: {key}" for key in values],
        "uncompared": why and f"{name}: {why}",
    }


if __name__ == "__main__":
    found = {
        run: {name: compare_file(name, *pair) for name, pair in files.items()}
        for run, files in json.load(sys.stdin).items()
    }
    json.dump(found, sys.stdout)
