"""The file of a rank in a checkpoint: data, then the SHA-256 of each of its blocks.

The digest of such a file is the SHA-256 of the digests at its end. So a rank that needs a part of
the data reads and checks the blocks of that part only.
"""

from __future__ import annotations

import hashlib
import os
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from slurm_job_kit.jobs.checkpoint.manifest import Damaged, FileDigest

SUFFIX = ".bin"
BLOCK_BYTES = 2**16
DIGEST_BYTES = hashlib.sha256().digest_size
READ_BYTES = 16 * BLOCK_BYTES


def part_name(rank: int) -> str:
    """Return the name of the file that a rank writes."""
    return f"rank-{rank:05d}{SUFFIX}"


def data_bytes(size: int) -> int:
    """Return the number of bytes before the digests, in a file of this size."""
    num_blocks = -(-size // (BLOCK_BYTES + DIGEST_BYTES))
    return size - num_blocks * DIGEST_BYTES


def sha256_of(file: BinaryIO, size: int) -> str | None:
    """Return the digest of an open file; None where a block does not agree with its own.

    Reads the file from its present position to its end.
    """
    found = bytearray()
    rest = data_bytes(size)
    while rest > 0 and (block := file.read(min(BLOCK_BYTES, rest))):
        found += hashlib.sha256(block).digest()
        rest -= len(block)
    digests = file.read()
    return hashlib.sha256(digests).hexdigest() if digests == found and rest == 0 else None


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
        return FileDigest(self._size + len(self._digests), sha256, BLOCK_BYTES)

    def _end_block(self) -> None:
        self._digests += self._block.digest()
        self._block, self._room = hashlib.sha256(), BLOCK_BYTES


class PartFile:
    """An open file of a rank. bytes_read: of its data and digests, so far.

    Raises: Damaged where size or digests are not those of the manifest; OSError.
    """

    def __init__(self, path: Path, file: BufferedReader, expected: FileDigest) -> None:
        self._name, self._file = path.name, file
        size = os.fstat(file.fileno()).st_size
        if size != expected.size:
            raise Damaged(f"{path.name} has {size} bytes, not {expected.size}")
        self._data_bytes = data_bytes(size)
        self._digests = bytearray(size - self._data_bytes)
        self.bytes_read = 0
        self._read(self._data_bytes, memoryview(self._digests))
        if hashlib.sha256(self._digests).hexdigest() != expected.sha256:
            raise Damaged(f"{path.name} does not agree with its SHA-256")
        self._buffer = bytearray(BLOCK_BYTES)
        self._buffered: int | None = None  # the block in the buffer

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill `target` with the data from `offset` on. Raises: Damaged, OSError.

        Only blocks that agree with their SHA-256 are copied; a block that is read in part is
        checked as a whole.
        """
        if offset + len(target) > self._data_bytes:
            raise Damaged(f"{self._name} ends before byte {offset + len(target)}")
        while len(target):
            block, start = divmod(offset, BLOCK_BYTES)
            whole = min(len(target), READ_BYTES) // BLOCK_BYTES * BLOCK_BYTES
            is_aligned = start == 0
            if is_aligned and offset + len(target) == self._data_bytes:
                whole = min(len(target), READ_BYTES)  # the last block may be shorter
            if is_aligned and whole:
                done = target[:whole]
                self._read(offset, done)
                self._check(block, done)
            else:
                done = target[: BLOCK_BYTES - start]
                done[:] = self._block(block)[start : start + len(done)]
            offset += len(done)
            target = target[len(done) :]

    def _block(self, block: int) -> memoryview:
        """Return a block, which stays in the buffer: the next tensor begins in it, too."""
        size = min(BLOCK_BYTES, self._data_bytes - block * BLOCK_BYTES)
        view = memoryview(self._buffer)[:size]
        if block != self._buffered:
            self._buffered = None
            self._read(block * BLOCK_BYTES, view)
            self._check(block, view)
            self._buffered = block
        return view

    def _read(self, offset: int, target: memoryview) -> None:
        self._file.seek(offset)
        count = self._file.readinto(target)
        self.bytes_read += count
        if count < len(target):
            raise Damaged(f"{self._name} ends before byte {offset + len(target)}")

    def _check(self, block: int, data: memoryview) -> None:
        """Compare the blocks in `data`, the first of which is `block`, with their digests."""
        for start in range(0, len(data), BLOCK_BYTES):
            at = (block + start // BLOCK_BYTES) * DIGEST_BYTES
            found = hashlib.sha256(data[start : start + BLOCK_BYTES]).digest()
            if found != self._digests[at : at + DIGEST_BYTES]:
                where = f"at byte {block * BLOCK_BYTES + start}"
                raise Damaged(f"{self._name} does not agree with its SHA-256 {where}")
