"""The content of a checkpoint: state.json has the plain values and the place of each tensor.

The bytes of the tensors are in the files of the ranks, row after row, without gaps inside a tensor.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from slurm_job_kit.jobs.checkpoint.part_file import part_name
from slurm_job_kit.jobs.checkpoint.reader import Contents, Damaged
from slurm_job_kit.trainer.checkpoint.commit import Sink
from slurm_job_kit.trainer.strategy.sharding import Rows, Sharding

STATE = "state.json"
ALIGNMENT = 64  # bytes; of the first element of each piece in its file
# Tensors that are not read into their place, such as those of a GPU, go through such a buffer.
BUFFER_BYTES = 64 * 2**20
# A dict of this one key stands for what JSON does not have.
_TENSOR, _TUPLE, _DICT = "!tensor", "!tuple", "!dict"


class Pieces(NamedTuple):
    """Some of the elements of a tensor: as many of them in the file of each of some ranks.

    rank: the first one of `num_ranks` ranks. offset: of its first element, in bytes, in the file of
    each of them. first: the number of rank `rank`'s first element in the whole tensor; the next
    rank's elements follow. size: the elements of each rank.
    """

    rank: int
    offset: int
    first: int
    size: int
    num_ranks: int = 1  # checkpoints of an older kit have an entry for each rank


@dataclass(frozen=True)
class StoredTensor:
    """A whole tensor of a checkpoint, and where its bytes are."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    pieces: tuple[Pieces, ...]

    def read(self, contents: Contents) -> torch.Tensor:
        """Return the whole tensor, on the CPU. Raises: Damaged, OSError."""
        tensor = torch.empty(self.shape, dtype=self.dtype)
        self.read_into(contents, 0, tensor)
        return tensor

    def read_into(self, contents: Contents, first: int, target: torch.Tensor) -> None:
        """Fill `target` with the elements from number `first` on. Raises: Damaged, OSError.

        target: on any device, in any memory format; the elements count as in a contiguous one.
        """
        if target.device.type == "cpu" and target.is_contiguous() and target.dtype == self.dtype:
            self._read(contents, first, target.detach().view(-1))
        elif target.is_contiguous():
            step = max(1, BUFFER_BYTES // self.dtype.itemsize)
            buffer = torch.empty(min(step, target.numel()), dtype=self.dtype)
            for part in torch.split(target.detach().view(-1), step):
                self._read(contents, first, buffer[: len(part)])
                part.copy_(buffer[: len(part)])
                first += len(part)
        else:
            buffer = torch.empty(target.numel(), dtype=self.dtype)
            self._read(contents, first, buffer)
            target.detach().copy_(buffer.view(target.shape))

    def _read(self, contents: Contents, first: int, target: torch.Tensor) -> None:
        itemsize, found = self.dtype.itemsize, 0
        memory = memory_of(target)
        for pieces in self.pieces:
            begin = max(first, pieces.first)
            end = min(first + len(target), pieces.first + pieces.size * pieces.num_ranks)
            while begin < end:
                index, skipped = divmod(begin - pieces.first, pieces.size)
                size = min(end - begin, pieces.size - skipped)
                view = memory[(begin - first) * itemsize :][: size * itemsize]
                name = part_name(pieces.rank + index)
                contents.read_into(name, pieces.offset + skipped * itemsize, view)
                begin += size
                found += size
        if found != len(target):
            missing = f"{len(target) - found} of {len(target)} elements from {first} on"
            raise Damaged(f"{STATE} has no place of {missing} of {self.name}")


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
    """Return the tensors of a state and their places, in the order of `leaves`.

    Each rank computes the places of all. A divided tensor has a piece of each part, in the file of
    the rank that writes the part; any other one is whole in the file of rank 0.
    """
    ends = np.zeros(sharding.num_shards, dtype=np.int64)  # of the files of the ranks so far
    stored = []
    for name, leaf in leaves(tree):
        tensor = leaf.local if isinstance(leaf, Rows) else leaf
        row, size = math.prod(leaf.shape[1:]), math.prod(leaf.shape)
        sizes = np.array([size])
        if isinstance(leaf, Rows):
            part = sharding.rows(leaf.shape[0], 0)[1] * row
            sizes = (size - part * np.arange(sharding.num_shards)).clip(0, part)
        end = ends[: len(sizes)]
        offsets = -(-end // ALIGNMENT) * ALIGNMENT
        pieces = tuple(_pieces(offsets, sizes))
        end[:] = np.where(sizes, offsets + sizes * tensor.dtype.itemsize, end)
        stored.append(StoredTensor(name, tensor.dtype, tuple(leaf.shape), pieces))
    return stored


def _pieces(offsets: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> Iterator[Pieces]:
    """Yield neighbouring ranks together that have as many elements at the same offset."""
    differs = (np.diff(offsets) != 0) | (np.diff(sizes) != 0)
    bounds = [0, *(np.flatnonzero(differs) + 1).tolist(), len(sizes)]
    first = 0
    for rank, end in itertools.pairwise(bounds):
        if size := int(sizes[rank]):
            yield Pieces(rank, int(offsets[rank]), first, size, end - rank)
            first += size * (end - rank)


def write_part(tree: Any, stored: Sequence[StoredTensor], rank: int, sink: Sink) -> None:
    """Write the content of the file of a rank; the tensors of `tree` are on the CPU."""
    end = 0
    for (_, leaf), entry in zip(leaves(tree), stored, strict=True):
        for pieces in entry.pieces:
            if not 0 <= rank - pieces.rank < pieces.num_ranks:
                continue
            tensor = leaf.local if isinstance(leaf, Rows) else leaf
            memory = memory_of(tensor.contiguous())
            sink.write(bytes(pieces.offset - end))
            sink.write(memory)  # type: ignore[arg-type]
            end = pieces.offset + len(memory)


def to_json(tree: Any, stored: Sequence[StoredTensor]) -> bytes:
    """Return the content of state.json."""
    numbers = iter(range(len(stored)))
    tensors = [
        {
            "name": each.name,
            "dtype": str(each.dtype).removeprefix("torch."),
            "shape": each.shape,
            "pieces": each.pieces,
        }
        for each in stored
    ]
    return json.dumps({"state": _encode(tree, numbers), "tensors": tensors}).encode()


def _encode(value: Any, numbers: Iterator[int]) -> Any:
    if isinstance(value, (torch.Tensor, Rows)):
        return {_TENSOR: next(numbers)}
    if isinstance(value, tuple):
        return {_TUPLE: [_encode(item, numbers) for item in value]}
    if isinstance(value, list):
        return [_encode(item, numbers) for item in value]
    if not isinstance(value, dict):
        return value
    if all(isinstance(key, str) and not key.startswith("!") for key in value):
        return {key: _encode(item, numbers) for key, item in value.items()}
    return {_DICT: [[key, _encode(item, numbers)] for key, item in value.items()]}


def from_json(text: bytes) -> dict[str, Any]:
    """Return the state in state.json, with a StoredTensor in the place of each tensor.

    Raises: Damaged if it is not what the kit wrote.
    """
    try:
        values = json.loads(text)
        tensors = [_stored(each) for each in values["tensors"]]
        state = _decode(values["state"], tensors.__getitem__)
        if not isinstance(state, dict):
            raise TypeError("the state is no object")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"{STATE} is not what the kit writes: {error}") from error
    return state


def _stored(values: dict[str, Any]) -> StoredTensor:
    dtype = getattr(torch, values["dtype"])
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{values['dtype']} is no type of a tensor")
    shape = tuple(values["shape"])
    pieces = tuple(Pieces(*map(int, each)) for each in values["pieces"])
    if sum(each.size * each.num_ranks for each in pieces) != math.prod(shape):
        raise ValueError(f"{values['name']} has not {math.prod(shape)} elements")
    return StoredTensor(values["name"], dtype, shape, pieces)


def _decode(value: Any, tensor: Callable[[int], StoredTensor]) -> Any:
    if isinstance(value, list):
        return [_decode(item, tensor) for item in value]
    if not isinstance(value, dict):
        return value
    if _TENSOR in value:
        return tensor(value[_TENSOR])
    if _TUPLE in value:
        return tuple(_decode(item, tensor) for item in value[_TUPLE])
    if _DICT in value:
        return {key: _decode(item, tensor) for key, item in value[_DICT]}
    return {key: _decode(item, tensor) for key, item in value.items()}


def whole(tree: Any, contents: Contents) -> Any:
    """Return nested containers with each StoredTensor read. Raises: Damaged, OSError."""
    return mapped(tree, lambda value: _read_whole(value, contents))


def _read_whole(value: Any, contents: Contents) -> Any:
    return value.read(contents) if isinstance(value, StoredTensor) else value


def mapped(tree: Any, function: Callable[[Any], Any]) -> Any:
    """Return nested containers with `function` of each value that is none of them."""
    if isinstance(tree, dict):
        return {key: mapped(item, function) for key, item in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(mapped(item, function) for item in tree)
    return function(tree)
