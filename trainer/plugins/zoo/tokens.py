"""Sequences of tokens for language models: a token file, Python's own source code."""

from __future__ import annotations

import hashlib
import sysconfig
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ...errors import UserError
from .image_files import absolute

TYPES: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
# A header of 256 int32 that begins with this number. Source: llm.c and modded-nanogpt, data files.
HEADER_MAGIC = 20240520
HEADER_BYTES = 1024
BYTE_VOCABULARY = 256
HELD_OUT_EVERY = 10  # files
SAMPLED_BYTES = 2**16  # of a token file that go into the digest


@dataclass(frozen=True)
class TokenSource:
    """Windows of `block_size` + 1 tokens, each beginning where the one before has its last token.

    Tokens of fewer than a whole window at the end are left out.

    name: of the file. digest: of the content, compared between ranks and at a resume.
    bytes_per_token: mean length of a token's text, None if unknown.
    Raises: UserError where there is no whole window.
    """

    tokens: npt.NDArray[Any]
    name: str
    block_size: int
    vocab_size: int
    digest: str
    bytes_per_token: float | None
    is_on_cpu: bool = True  # the indices of `batch` are on the CPU, where the tokens are

    def __post_init__(self) -> None:
        if len(self.tokens) <= self.block_size:
            what = f"{len(self.tokens)} tokens make no window of block_size {self.block_size} + 1"
            hint = "take a smaller train.dataset_args.block_size, or more text"
            raise UserError(f"train.dataset: {self.name}: {what} tokens", hint)

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.block_size

    def to(self, device: torch.device) -> TokenSource:
        """Return the same windows: the tokens stay in host memory or on the disk."""
        return self

    def batch(self, indices: torch.Tensor) -> torch.Tensor:
        """Return the windows `indices`, int64 [n], as int64 [n, block_size + 1].

        Raises: UserError where a token is not below vocab_size.
        """
        begins = [index * self.block_size for index in indices.tolist()]
        rows = np.stack([self.tokens[begin : begin + self.block_size + 1] for begin in begins])
        if (highest := int(rows.max())) >= self.vocab_size:
            what = f"{self.name} has the token {highest}, but vocab_size is {self.vocab_size}"
            hint = "set train.dataset_args.vocab_size to the tokenizer's, and dtype to the file's"
            raise UserError(f"train.dataset: {what}", hint)
        return torch.from_numpy(rows.astype(np.int64))


def tokens(
    train: str,
    vocab_size: int,
    held_out: str | None = None,
    block_size: int = 1024,
    dtype: str = "uint16",
    bytes_per_token: float | None = None,
) -> tuple[TokenSource, TokenSource | None]:
    """Return (train, held-out) windows of token files; the held-out part may be None.

    dtype: of the tokens, uint16 or uint32, little endian, as nanoGPT writes them; a header as
        llm.c writes it is skipped.
    """
    if dtype not in TYPES:
        raise UserError(f"train.dataset_args.dtype is {dtype!r}: write {' or '.join(TYPES)}")

    def source(key: str, path: str) -> TokenSource:
        file = absolute(key, path)
        content, digest = _map_tokens(key, file, TYPES[dtype])
        return TokenSource(content, str(file), block_size, vocab_size, digest, bytes_per_token)

    return source("train", train), None if held_out is None else source("held_out", held_out)


def python_source(
    block_size: int = 256, max_bytes: int | None = None
) -> tuple[TokenSource, TokenSource]:
    """Return (train, held-out) windows of the source code of Python's own standard library.

    Every machine with Python has it; other versions of Python have other files. Every tenth file,
    in the order of their names, is held out.

    max_bytes: take only as many files, from the first on, as fit.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    packages = ("asyncio", "concurrent", "email", "http", "json", "logging", "unittest")
    in_packages = (path for name in packages for path in folder.glob(f"{name}/**/*.py"))
    files = sorted(folder.glob("*.py")) + sorted(in_packages)
    read = [np.fromfile(file, dtype=np.uint8) for file in files]
    if max_bytes is not None:
        ends = accumulate(map(len, read))
        read = [each for each, end in zip(read, ends, strict=True) if end <= max_bytes]
    held_out = read[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY] or [read.pop()]
    train = [each for number, each in enumerate(read, 1) if number % HELD_OUT_EVERY]
    name = f"the source code in {folder}"

    def source(part: list[npt.NDArray[np.uint8]]) -> TokenSource:
        content = np.concatenate(part)
        digest = hashlib.sha256(content.tobytes()).hexdigest()
        return TokenSource(content, name, block_size, BYTE_VOCABULARY, digest, bytes_per_token=1.0)

    return source(train), source(held_out)


def _map_tokens(key: str, file: Path, dtype: np.dtype[Any]) -> tuple[npt.NDArray[Any], str]:
    """Return the tokens of a file, mapped into memory, and a digest of its size and some bytes."""
    if not file.is_file():
        raise UserError(f"train.dataset_args.{key}: {file} is no file")
    num_bytes = file.stat().st_size
    with open(file, "rb") as opened:
        head = opened.read(SAMPLED_BYTES)
        opened.seek(max(0, num_bytes - SAMPLED_BYTES))
        digest = hashlib.sha256(f"{num_bytes} ".encode() + head + opened.read()).hexdigest()
    begin = HEADER_BYTES if head[:4] == HEADER_MAGIC.to_bytes(4, "little") else 0
    if num_bytes <= begin or (num_bytes - begin) % dtype.itemsize:
        what = f"{num_bytes} bytes, which are no tokens of {dtype.itemsize} bytes each"
        hint = "check dtype, or write the file again"
        raise UserError(f"train.dataset_args.{key}: {file} has {what}", hint)
    return np.memmap(file, dtype=dtype, mode="r", offset=begin), digest
