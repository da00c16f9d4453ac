"""The file of a rank in a checkpoint: a safetensors file whose last tensor is its block digests.

The tensor DIGESTS, uint8 [blocks, 32], has the SHA-256 of each block of BLOCK_BYTES of the header
and the tensors before it. The digest of the file is the SHA-256 of this tensor. So a rank that
needs a part of the data reads and checks the blocks of that part only.
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

from .manifest import DamageError, FileDigest

SUFFIX = ".safetensors"
DIGESTS = "block_sha256"
LENGTH_BYTES = 8  # of the header's length, at the start of the file
DIGESTS_ENTRY_BYTES = 192  # room in the header for the entry of DIGESTS
ALIGNMENT = 64  # bytes; of the first tensor
BLOCK_BYTES = 2**16
DIGEST_BYTES = hashlib.sha256().digest_size
READ_BYTES = 16 * BLOCK_BYTES


def part_name(rank: int) -> str:
    """Return the name of the file that a rank writes."""
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
    room = LENGTH_BYTES + len(json.dumps(entries)) + DIGESTS_ENTRY_BYTES
    begin = -(-room // ALIGNMENT) * ALIGNMENT
    num_blocks = -(-(begin + end) // BLOCK_BYTES)
    offsets = [end, end + num_blocks * DIGEST_BYTES]
    shape = [num_blocks, DIGEST_BYTES]
    entries[DIGESTS] = {"dtype": "U8", "shape": shape, "data_offsets": offsets}
    length = begin - LENGTH_BYTES
    return length.to_bytes(LENGTH_BYTES, "little") + json.dumps(entries).encode().ljust(length)


@functools.lru_cache(maxsize=8)  # the headers of most ranks are equal
def places(text: bytes) -> Mapping[str, tuple[int, int]]:
    """Return the first byte of each tensor in a file, and the byte after its last one.

    text: the header without its length. Raises: one of MALFORMED if the kit did not write it.
    """
    begin = LENGTH_BYTES + len(text)
    return {
        name: (begin + int(entry["data_offsets"][0]), begin + int(entry["data_offsets"][1]))
        for name, entry in json.loads(text).items()
    }


def data_bytes(size: int) -> int:
    """Return the number of bytes before the digests, in a file of this size."""
    num_blocks = -(-size // (BLOCK_BYTES + DIGEST_BYTES))
    return size - num_blocks * DIGEST_BYTES


def sha256_of(file: BinaryIO, size: int) -> str | None:
    """Return the digest of an open file; None where a block does not agree with its own.

    Reads the file from its present position to its end.
    """
    computed = bytearray()
    rest = data_bytes(size)
    while rest > 0 and (block := file.read(min(BLOCK_BYTES, rest))):
        computed += hashlib.sha256(block).digest()
        rest -= len(block)
    digests = file.read()
    return hashlib.sha256(digests).hexdigest() if digests == computed and rest == 0 else None


class BlockSink:
    """Writes data to a file, and at the end the SHA-256 of each block."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digests = bytearray()
        self._block = hashlib.sha256()
        self._room = BLOCK_BYTES  # what is left of the present block
        self._size = 0

    def write(self, data: bytes) -> int:
        """Write bytes (or a memoryview of bytes) after those before."""
        view = memoryview(data)
        self._file.write(view)
        self._size += len(view)
        while len(view):
            part = view[: self._room]
            self._block.update(part)
            self._room -= len(part)
            view = view[len(part) :]
            if self._room == 0:
                self._end_block()
        return len(data)

    def finish(self) -> FileDigest:
        """Write the digests; return that of the file. Call it once, at the end."""
        if self._room < BLOCK_BYTES:
            self._end_block()
        self._file.write(self._digests)
        sha256 = hashlib.sha256(self._digests).hexdigest()
        return FileDigest(self._size + len(self._digests), sha256)

    def _end_block(self) -> None:
        self._digests += self._block.digest()
        self._block, self._room = hashlib.sha256(), BLOCK_BYTES


class PartFile:
    """An open file of a rank. bytes_read: of its data and digests, so far.

    Raises: DamageError where size or digests are not those of the manifest; OSError.
    """

    def __init__(self, path: Path, file: BufferedReader, expected: FileDigest) -> None:
        self._name, self._file = path.name, file
        size = os.fstat(file.fileno()).st_size
        expected.check(path.name, size)
        self._data_bytes = data_bytes(size)
        self._digests = bytearray(size - self._data_bytes)
        self.bytes_read = 0
        self._read(self._data_bytes, memoryview(self._digests))
        expected.check(path.name, size, hashlib.sha256(self._digests).hexdigest())
        # The next tensor may begin in the same block. Those of two types may take turns.
        self._block = functools.lru_cache(maxsize=4)(self._read_block)

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill `target` with the data from `offset` on. Raises: DamageError, OSError.

        Only blocks that agree with their SHA-256 are copied; a block that is read in part is
        checked as a whole.
        """
        if offset < 0 or offset + len(target) > self._data_bytes:
            raise DamageError(f"{self._name} ends before byte {offset + len(target)}")
        while len(target):
            block, start = divmod(offset, BLOCK_BYTES)
            whole = min(len(target), READ_BYTES)
            if offset + whole < self._data_bytes:  # the last block may be shorter
                whole -= whole % BLOCK_BYTES
            if start == 0 and whole:
                done = target[:whole]
                self._read(offset, done)
                self._check(block, done)
            else:
                done = target[: BLOCK_BYTES - start]
                done[:] = self._block(block)[start : start + len(done)]
            offset += len(done)
            target = target[len(done) :]

    def _read_block(self, block: int) -> memoryview:
        view = memoryview(bytearray(min(BLOCK_BYTES, self._data_bytes - block * BLOCK_BYTES)))
        self._read(block * BLOCK_BYTES, view)
        self._check(block, view)
        return view

    def _read(self, offset: int, target: memoryview) -> None:
        self._file.seek(offset)
        count = self._file.readinto(target)
        self.bytes_read += count
        if count < len(target):
            raise DamageError(f"{self._name} ends before byte {offset + len(target)}")

    def _check(self, block: int, data: memoryview) -> None:
        """Compare the blocks in `data`, the first of which is `block`, with their digests."""
        for start in range(0, len(data), BLOCK_BYTES):
            at = (block + start // BLOCK_BYTES) * DIGEST_BYTES
            digest = hashlib.sha256(data[start : start + BLOCK_BYTES]).digest()
            if digest != self._digests[at : at + DIGEST_BYTES]:
                where = f"at byte {block * BLOCK_BYTES + start}"
                raise DamageError(f"{self._name} does not agree with its SHA-256 {where}")
