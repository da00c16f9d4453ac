"""The file of a rank in a checkpoint: a safetensors file.

Source of the format: github.com/huggingface/safetensors, "Format".
"""

import functools
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, NamedTuple

from .manifest import MALFORMED, DamageError, FileDigest

SUFFIX = ".safetensors"
# In a directory Hugging Face looks for these: a name, and the suffix of the index of several files.
MODEL_NAME = "model"
INDEX_SUFFIX = ".safetensors.index.json"
LENGTH_BYTES = 8  # of the header's length, at the start of the file
ALIGNMENT = 64  # bytes; of the first tensor
READ_BYTES = 2**20  # at once; they are hashed while the processor's cache has them


def part_name(rank: int) -> str:
    return f"rank-{rank:05d}{SUFFIX}"


class Entry(NamedTuple):
    """A tensor in the header. dtype: as safetensors names it. nbytes: its size."""

    name: str
    dtype: str
    shape: Sequence[int]
    nbytes: int


def header(tensors: Iterable[Entry]) -> bytes:
    """Return what stands in a file before these tensors, whose bytes follow without gaps."""
    entries, end = {}, 0
    for name, dtype, shape, nbytes in tensors:
        offsets = [end, end + nbytes]
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        end += nbytes
    text = json.dumps(entries).encode()
    length = -(-(LENGTH_BYTES + len(text)) // ALIGNMENT) * ALIGNMENT - LENGTH_BYTES
    return length.to_bytes(LENGTH_BYTES, "little") + text.ljust(length)


class HashedSink:
    """Writes to a file and computes its SHA-256."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._sha256 = hashlib.sha256()
        self._size = 0

    def write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._sha256.update(data)
        self._size += len(data)

    def digest(self) -> FileDigest:
        return FileDigest(self._size, self._sha256.hexdigest())


class PartReader:
    """Reads the file of a rank in its order; raises DamageError where it is not what was written.

    places: the first byte of each tensor, and the byte after its last one.
    is_checked: whether the file was compared with its SHA-256 before; else each byte is read once.
    """

    def __init__(self, path: Path, file: BufferedReader, expected: FileDigest, is_checked: bool):
        self._name, self._file, self._expected = path.name, file, expected
        self._sha256 = None if is_checked else hashlib.sha256()
        self._offset = 0
        expected.check(self._name, os.fstat(file.fileno()).st_size)
        length = int.from_bytes(self._next(LENGTH_BYTES), "little")
        try:
            self.places = _places(bytes(self._next(min(length, expected.size))))
        except MALFORMED as error:
            what = f"{self._name} has a header that is not the kit's: {error}"
            raise DamageError(what) from error

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill `target` with the bytes from `offset` on, which follow those that were read."""
        if offset < self._offset:
            raise DamageError(f"{self._name} has two tensors at byte {offset}")
        self._skip_to(offset)
        self._fill(target)

    def check(self) -> None:
        """Read what is left, and compare the file with its SHA-256."""
        if self._sha256 is not None:
            self._skip_to(self._expected.size)
            self._expected.check(self._name, self._offset, self._sha256.hexdigest())

    def _skip_to(self, offset: int) -> None:
        if self._sha256 is None:
            self._offset = self._file.seek(offset)
        while self._offset < offset:
            self._next(min(READ_BYTES, offset - self._offset))

    def _next(self, size: int) -> bytearray:
        data = bytearray(size)
        self._fill(memoryview(data))
        return data

    def _fill(self, target: memoryview) -> None:
        for start in range(0, len(target), READ_BYTES):
            chunk = target[start : start + READ_BYTES]
            if self._file.readinto(chunk) < len(chunk):
                raise DamageError(f"{self._name} ends before byte {self._offset + len(chunk)}")
            self._offset += len(chunk)
            if self._sha256 is not None:
                self._sha256.update(chunk)


@functools.lru_cache(maxsize=8)  # the headers of most ranks are equal
def _places(text: bytes) -> Mapping[str, tuple[int, int]]:
    """Return the first byte of each tensor in a file, and the byte after its last one.

    text: the header without its length. Raises: one of MALFORMED if the kit did not write it.
    """
    begin = LENGTH_BYTES + len(text)
    return {
        name: (begin + int(entry["data_offsets"][0]), begin + int(entry["data_offsets"][1]))
        for name, entry in json.loads(text).items()
    }
