"""Files of a checkpoint that ranks read in part: data, then the SHA-256 of each of its blocks.

The digest of such a file is the SHA-256 of the digests at its end. So a rank that needs a part of
the data reads and checks the blocks of that part only.
"""

from __future__ import annotations

import hashlib
from typing import BinaryIO

BLOCK_BYTES = 2**16
DIGEST_BYTES = hashlib.sha256().digest_size


def data_bytes(size: int) -> int:
    """The number of bytes before the digests, in a file of this size."""
    num_blocks = -(-size // (BLOCK_BYTES + DIGEST_BYTES))
    return size - num_blocks * DIGEST_BYTES


def sha256_of(file: BinaryIO, size: int) -> str | None:
    """The digest of an open file of this size; None where a block does not agree with its own.

    Reads the file from its present position to its end.
    """
    found = bytearray()
    rest = data_bytes(size)
    while rest > 0 and (block := file.read(min(BLOCK_BYTES, rest))):
        found += hashlib.sha256(block).digest()
        rest -= len(block)
    digests = file.read()
    return hashlib.sha256(digests).hexdigest() if digests == found and rest == 0 else None
