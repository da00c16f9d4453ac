"""The content of a checkpoint: state.json has the plain values, and a name for each tensor.

The file of a rank has its rows of the divided tensors. That of rank 0 has all other tensors, too.
"""

import functools
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import safetensors
import safetensors.torch
import torch

from ..contract import MALFORMED, Contents, DamageError, Entry, HashedSink, header, part_name
from ..strategy.interface import Rows, Sharding

STATE = "state.json"
# A dict of this one key stands for what JSON does not have.
_TENSOR, _TUPLE, _DICT = "!tensor", "!tuple", "!dict"


@dataclass(frozen=True)
class StoredTensor:
    """A whole tensor of a checkpoint.

    name: of its part in the file of each rank that has one.
    num_parts: the ranks that its rows are divided between, as `Sharding.rows` divides them; 1 where
        rank 0 has it whole.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    num_parts: int

    def pieces(self, first: int, count: int) -> Iterator[tuple[str, int, int]]:
        """Yield the files that have the `count` elements from number `first` on.

        With the number of the first one, in the tensor's part of the file, and how many follow.
        """
        size = math.prod(self.shape)
        if self.num_parts > 1:
            size = Sharding(self.num_parts, 0).rows(self.shape[0])[1] * math.prod(self.shape[1:])
        while count:
            rank, skipped = divmod(first, size)
            number = min(count, size - skipped)
            yield part_name(rank), skipped, number
            first, count = first + number, count - number


class Part(NamedTuple):
    """Elements of a tensor in the file of a rank.

    begin: the first one, counted in the tensor's part of the file. size: their number.
    memory: yields memory for them, each of which is filled before the next one is asked for.
    """

    tensor: StoredTensor
    file: str
    begin: int
    size: int
    memory: Callable[[], Iterable[memoryview]]


def read_parts(
    parts: Iterable[Part], contents: Contents, files: Iterable[str], is_checked: bool = False
) -> None:
    """Fill the memory of the parts that are in these files. Raises as `Contents.read_part`."""
    in_file = defaultdict[str, list[Part]](list)
    for part in parts:
        in_file[part.file].append(part)
    for file in files:
        contents.read_part(file, functools.partial(_in_order, in_file[file]), is_checked)


def _in_order(
    parts: Iterable[Part], places: Mapping[str, tuple[int, int]]
) -> Iterator[tuple[int, Iterable[memoryview]]]:
    found = []
    for part in parts:
        begin, end = places.get(part.tensor.name, (0, 0))
        itemsize = part.tensor.dtype.itemsize
        begin += part.begin * itemsize
        if begin + part.size * itemsize > end:
            raise DamageError(f"{part.file} has not all of the rows of {part.tensor.name}")
        found.append((begin, part))
    for begin, part in sorted(found, key=lambda each: each[0]):
        yield begin, part.memory()


def memory_of(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor on the CPU."""
    raw: Any = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    return memoryview(raw)


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor | Rows]]:
    """Yield the tensors in nested containers with their names, always in the same order."""
    if isinstance(tree, (torch.Tensor, Rows)):
        yield path, tree
    elif isinstance(tree, (dict, list, tuple)):
        items = tree.items() if isinstance(tree, dict) else enumerate(tree)
        for key, item in items:
            yield from leaves(item, f"{path}/{key}" if path else str(key))


def lay_out(tree: Any, sharding: Sharding) -> list[StoredTensor]:
    """Return the tensors of a state in the order of `leaves`, the same on each rank."""
    stored: dict[str, StoredTensor] = {}
    for path, leaf in leaves(tree):
        name = path
        while name in stored:  # such as of the keys 1 and "1"
            name += "+"
        shape, num_parts = tuple(leaf.shape), sharding.num_shards if isinstance(leaf, Rows) else 1
        stored[name] = StoredTensor(name, local(leaf).dtype, shape, num_parts)
    return [*stored.values()]


def local(leaf: torch.Tensor | Rows) -> torch.Tensor:
    """Return what this rank has of a tensor."""
    return leaf.local if isinstance(leaf, Rows) else leaf


def write_part(tree: Any, sharding: Sharding, sink: HashedSink) -> None:
    """Write the content of this rank's file; the tensors of `tree` are on the CPU."""
    own = [
        (stored.name, local(leaf))
        for stored, (_, leaf) in zip(lay_out(tree, sharding), leaves(tree), strict=True)
        if sharding.rank == 0 or isinstance(leaf, Rows)
    ]
    # Tools that map a file into memory need each element at a multiple of its size.
    own.sort(key=lambda each: each[1].itemsize, reverse=True)
    sink.write(header(_entry(*each) for each in own))
    for _, tensor in own:
        sink.write(memory_of(tensor.contiguous()))


def _entry(name: str, tensor: torch.Tensor) -> Entry:
    dtype, shape = _dtype_name(tensor.dtype), tuple(tensor.shape)
    if dtype is None:
        dtype, shape = "U8", (*shape, tensor.itemsize)
    return Entry(name, dtype, shape, tensor.nbytes)


@functools.cache
def _dtype_name(dtype: torch.dtype) -> str | None:
    """Return what safetensors calls a type of one or more bytes; None for a type it does not have.

    The library has no public table of them.
    """
    try:
        text = safetensors.torch.save({"x": torch.empty(1, dtype=dtype)})
    except KeyError:
        return None
    ((_, entry),) = safetensors.deserialize(text)  # type: ignore[no-untyped-call]
    return str(entry["dtype"]) if entry["shape"] == [1] else None


def to_json(tree: Any, sharding: Sharding) -> bytes:
    """Return the content of state.json."""
    return json.dumps(_encode(tree, iter(lay_out(tree, sharding)))).encode()


def _encode(value: Any, stored: Iterator[StoredTensor]) -> Any:
    if isinstance(value, (torch.Tensor, Rows)):
        each = next(stored)
        dtype = str(each.dtype).removeprefix("torch.")
        return {_TENSOR: [each.name, dtype, each.shape, each.num_parts]}
    if isinstance(value, tuple):
        return {_TUPLE: [_encode(item, stored) for item in value]}
    if isinstance(value, list):
        return [_encode(item, stored) for item in value]
    if not isinstance(value, dict):
        return value
    if all(isinstance(key, str) and not key.startswith("!") for key in value):
        return {key: _encode(item, stored) for key, item in value.items()}
    return {_DICT: [[key, _encode(item, stored)] for key, item in value.items()]}


def from_json(text: bytes) -> dict[str, Any]:
    """Return the state in state.json, with a StoredTensor in the place of each tensor.

    Raises: DamageError if it is not what the kit wrote.
    """
    try:
        state = _decode(json.loads(text))
        if not isinstance(state, dict):
            raise TypeError("the state is no object")
    except MALFORMED as error:
        raise DamageError(f"{STATE} is not what the kit writes: {error}") from error
    return state


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if _TENSOR in value:
        name, dtype, shape, num_parts = value[_TENSOR]
        return StoredTensor(name, getattr(torch, dtype), tuple(map(int, shape)), num_parts)
    if _TUPLE in value:
        return tuple(_decode(item) for item in value[_TUPLE])
    if _DICT in value:
        return {key: _decode(item) for key, item in value[_DICT]}
    return {key: _decode(item) for key, item in value.items()}


def read(contents: Contents) -> dict[str, Any]:
    """Return the state in a checkpoint, as `from_json`. Raises: DamageError, OSError."""
    return from_json(contents.read(STATE))


def tensors_of(model: Mapping[str, Any]) -> dict[str, StoredTensor]:
    """Return the tensors of a model's state; its other values are what modules add to it."""
    return {name: value for name, value in model.items() if isinstance(value, StoredTensor)}


def whole(tree: Any, contents: Contents, is_checked: bool = False) -> Any:
    """Return nested containers with each StoredTensor read. Raises: DamageError, OSError.

    is_checked: the files were compared with their SHA-256 before; else they are now.
    """
    parts: list[Part] = []
    tensors = with_memory(tree, parts)
    files = {part.file for part in parts} if is_checked else contents.part_names
    read_parts(parts, contents, files, is_checked)
    return tensors


def with_memory(tree: Any, parts: list[Part]) -> Any:
    """Return nested containers with memory for each StoredTensor; append its parts."""

    def memory_for(value: Any) -> Any:
        if not isinstance(value, StoredTensor):
            return value
        tensor = torch.empty(value.shape, dtype=value.dtype)
        memory = memory_of(tensor)
        for file, begin, size in value.pieces(0, tensor.numel()):
            own, memory = memory[: size * tensor.itemsize], memory[size * tensor.itemsize :]
            parts.append(Part(value, file, begin, size, functools.partial(iter, (own,))))
        return tensor

    return map_values(tree, memory_for)


def map_values(tree: Any, function: Callable[[Any], Any]) -> Any:
    """Return nested containers with `function` of each value that is none of them."""
    if isinstance(tree, dict):
        return {key: map_values(item, function) for key, item in tree.items()}
    if isinstance(tree, (list, tuple)):
        items = [map_values(item, function) for item in tree]
        return tuple(items) if isinstance(tree, tuple) else items  # a named tuple takes no list
    return function(tree)
