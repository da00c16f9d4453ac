"""Sequences of tokens for language models: token files, bytes of text, Python's own source code."""

from __future__ import annotations

import hashlib
import os
import resource
import sysconfig
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..errors import UserError
from .sources import absolute

TYPES: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
# A header of 256 int32 that begins with this number. Source: llm.c and modded-nanogpt, data files.
HEADER_MAGIC = 20240520
HEADER_BYTES = 1024
BYTE_VOCABULARY = 256
HELD_OUT_FRACTION = 0.1
SAMPLED_BYTES = 2**16  # of each token file that go into the digest
SPARE_FILES = 256  # that a rank may open besides the token files


@dataclass(frozen=True)
class TokenSource:
    """Windows of `block_size` + 1 tokens, each beginning where the one before has its last token.

    The windows do not overlap but for that token, and none crosses the end of a file. Tokens of
    fewer than a whole window at the end of a file are left out.

    digest: of the content, compared between ranks and at a resume.
    bytes_per_token: mean length of a token's text, None if unknown.
    """

    files: tuple[npt.NDArray[Any], ...]
    names: tuple[str, ...]
    block_size: int
    vocab_size: int
    digest: str
    bytes_per_token: float | None
    is_on_cpu: bool = True  # the indices of `batch` are on the CPU, where the files are
    _ends: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        sizes = [max(0, len(each) - 1) // self.block_size for each in self.files]
        object.__setattr__(self, "_ends", tuple(accumulate(sizes)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def to(self, device: torch.device) -> TokenSource:
        """Return the same windows: the files stay in host memory or on the disk."""
        return replace(self)

    def batch(self, indices: torch.Tensor) -> torch.Tensor:
        """Return the windows `indices`, int64 [n], as int64 [n, block_size + 1].

        Raises: UserError where a token is not below vocab_size.
        """
        rows = np.stack([self._window(index) for index in indices.tolist()])
        highest = int(rows.max())
        if highest >= self.vocab_size:
            self._refuse(rows, indices.tolist())
        return torch.from_numpy(rows)

    def _window(self, index: int) -> npt.NDArray[np.int64]:
        file = bisect_right(self._ends, index)
        first = index - (self._ends[file - 1] if file else 0)
        begin = first * self.block_size
        return self.files[file][begin : begin + self.block_size + 1].astype(np.int64)

    def _refuse(self, rows: npt.NDArray[np.int64], indices: list[int]) -> None:
        wrong = next(number for number, row in enumerate(rows) if row.max() >= self.vocab_size)
        name = self.names[bisect_right(self._ends, indices[wrong])]
        raise UserError(
            f"train.dataset: {name} has the token {rows[wrong].max()}, but vocab_size is "
            f"{self.vocab_size}: set train.dataset_args.vocab_size to that of the tokenizer, and "
            "dtype to the type in which the file was written"
        )


def tokens(
    train: str | Sequence[str],
    vocab_size: int,
    held_out: str | Sequence[str] | None = None,
    block_size: int = 1024,
    dtype: str = "uint16",
    bytes_per_token: float | None = None,
) -> tuple[TokenSource, TokenSource | None]:
    """Return (train, held-out) windows of token files; the held-out part may be None.

    train, held_out: a file, a pattern such as `data/train_*.bin`, or a list of them.
    dtype: of the tokens, uint16 or uint32, little endian, as nanoGPT writes them; a header as
        llm.c writes it is skipped.
    """
    if dtype not in TYPES:
        raise UserError(f"train.dataset_args.dtype is {dtype!r}: write {' or '.join(TYPES)}")
    parts = [_token_part("train", train, TYPES[dtype])]
    if held_out is not None:
        parts.append(_token_part("held_out", held_out, TYPES[dtype]))
    made = [join_files(part, block_size, vocab_size, bytes_per_token) for part in parts]
    return made[0], made[1] if len(made) > 1 else None


def text(
    path: str,
    held_out: str | None = None,
    block_size: int = 256,
    pattern: str = "*.txt",
) -> tuple[TokenSource, TokenSource | None]:
    """Return (train, held-out) windows of the bytes of a text file, or of a folder's files.

    held_out: another file or folder. Without it whole files of the folder are held out, every
        tenth in the order of their names; of a single file its last tenth.
    pattern: of the files in a folder and the folders below it.
    """
    files = _text_files("path", path, pattern)
    if held_out is not None:
        others = _text_files("held_out", held_out, pattern)
        return _bytes(_read(files), block_size), _bytes(_read(others), block_size)
    if len(files) == 1:
        ((name, data),) = _read(files)
        cut = int(len(data) * (1 - HELD_OUT_FRACTION))
        return _bytes([(name, data[:cut])], block_size), _bytes([(name, data[cut:])], block_size)
    return _split(files, block_size)


def python_source(
    block_size: int = 256, max_bytes: int | None = None
) -> tuple[TokenSource, TokenSource]:
    """Return (train, held-out) windows of the source code of Python's own standard library.

    Every machine with Python has it; other versions of Python have other files. Every tenth file,
    in the order of their names, is held out.

    max_bytes: take only as many files, from the first on, as fit.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    files = sorted(folder.glob("*.py")) + sorted(
        path
        for package in ("asyncio", "concurrent", "email", "http", "json", "logging", "unittest")
        for path in folder.glob(f"{package}/**/*.py")
    )
    if not files:
        raise UserError(f"train.dataset python_source: {folder} has no source files")
    train, held_out = _split(files, block_size, max_bytes)
    return train, held_out


def _split(
    files: list[Path], block_size: int, max_bytes: int | None = None
) -> tuple[TokenSource, TokenSource]:
    """Return two sources: every tenth file is held out."""
    read = _read(files)
    if max_bytes is not None:
        ends = accumulate(len(data) for _, data in read)
        read = [each for each, end in zip(read, ends, strict=True) if end <= max_bytes]
    if len(read) < 2:
        raise UserError(
            f"train.dataset: {len(read)} of {len(files)} files fit max_bytes {max_bytes}: allow 2, "
            "one of them is held out"
        )
    every = int(1 / HELD_OUT_FRACTION)
    held_out = read[every - 1 :: every] or read[-1:]
    train = [each for each in read if not any(each is other for other in held_out)]
    return _bytes(train, block_size), _bytes(held_out, block_size)


def _read(files: list[Path]) -> list[tuple[str, npt.NDArray[np.uint8]]]:
    return [(str(file), np.fromfile(file, dtype=np.uint8)) for file in files]


def _bytes(read: list[tuple[str, npt.NDArray[np.uint8]]], block_size: int) -> TokenSource:
    """Return the bytes of files, one after the other, as one sequence of tokens."""
    content = np.concatenate([data for _, data in read])
    digest = hashlib.sha256(content.tobytes()).hexdigest()
    name = read[0][0] if len(read) == 1 else f"{read[0][0]} and {len(read) - 1} more files"
    part = [(name, content, digest)]
    return join_files(part, block_size, BYTE_VOCABULARY, bytes_per_token=1.0)


def _text_files(key: str, path: str, pattern: str) -> list[Path]:
    """Return the text files of a path that are not empty. Raises: UserError where there is none."""
    place = absolute(key, path)
    if place.is_file():
        return [place]
    matching = (file for file in place.rglob(pattern) if file.is_file())
    files = sorted(file for file in matching if file.stat().st_size)
    if not files:
        what = (
            f"has no files {pattern} with content"
            if place.is_dir()
            else "is neither a file nor a folder"
        )
        raise UserError(f"train.dataset_args.{key}: {path} {what}")
    return files


def _token_part(
    key: str, paths: str | Sequence[str], dtype: np.dtype[Any]
) -> list[tuple[str, npt.NDArray[Any], str]]:
    """Return (name, tokens, digest) of each file of a part. Raises: UserError."""
    given = [paths] if isinstance(paths, str) else list(paths)
    files = [file for path in given for file in _matching(key, path)]
    _allow_open_files(key, len(files))
    return [(str(file), *_map_tokens(key, file, dtype)) for file in files]


def _matching(key: str, path: str) -> list[Path]:
    place = absolute(key, path)
    files = [place] if place.is_file() else sorted(place.parent.glob(place.name))
    if not files:
        raise UserError(f"train.dataset_args.{key}: no file matches {path}")
    return files


def _allow_open_files(key: str, num_files: int) -> None:
    """Raise this process's limit where it needs more open files: NumPy keeps a mapped file open.

    Raises: UserError where the system does not allow so many.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = len(os.listdir("/proc/self/fd")) + num_files + SPARE_FILES
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise UserError(
            f"train.dataset_args.{key} names {num_files} files, but a process may open only {hard} "
            "(ulimit -Hn): join files, or have the limit raised"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _map_tokens(key: str, file: Path, dtype: np.dtype[Any]) -> tuple[npt.NDArray[Any], str]:
    """Return the tokens of a file, mapped into memory, and a digest of its size and some bytes."""
    num_bytes = file.stat().st_size
    with open(file, "rb") as opened:
        head = opened.read(SAMPLED_BYTES)
        opened.seek(max(0, num_bytes - SAMPLED_BYTES))
        digest = hashlib.sha256(f"{num_bytes} ".encode() + head + opened.read()).hexdigest()
    begin = HEADER_BYTES if head[:4] == HEADER_MAGIC.to_bytes(4, "little") else 0
    what = f"train.dataset_args.{key}: {file} has {num_bytes} bytes"
    if num_bytes <= begin:
        raise UserError(f"{what}, which are no tokens: leave the file out, or write it again")
    num_tokens, rest = divmod(num_bytes - begin, dtype.itemsize)
    if rest:
        raise UserError(
            f"{what}, which are no tokens of {dtype.itemsize} bytes each: check dtype, or write "
            "the file again"
        )
    if begin and (stated := int.from_bytes(head[8:12], "little")) != num_tokens:
        raise UserError(
            f"{what}, which are {num_tokens} tokens of {dtype.itemsize} bytes, but its header "
            f"states {stated}: check dtype, or copy the file again"
        )
    if dtype.itemsize == 2 and _are_four_bytes(head[begin:]):
        raise UserError(f"{what}, of which each third and fourth is 0: set dtype to uint32")
    return np.memmap(file, dtype=dtype, mode="r", offset=begin), digest


def _are_four_bytes(head: bytes) -> bool:
    """Return whether many tokens of two bytes look like half as many small ones of four."""
    values = np.frombuffer(head[: len(head) // 4 * 4], TYPES["uint16"])
    return len(values) >= 512 and not values[1::2].any() and bool(values.any())


def join_files(
    part: list[tuple[str, npt.NDArray[Any], str]],
    block_size: int,
    vocab_size: int,
    bytes_per_token: float | None,
) -> TokenSource:
    """Return the windows of files, each given as (name, tokens, digest). Raises: UserError."""
    if block_size < 1:
        raise UserError(f"train.dataset_args.block_size must be 1 or more, not {block_size}")
    names, files, digests = zip(*part, strict=True)
    longest = max(len(file) for file in files)
    if longest <= block_size:
        raise UserError(
            f"train.dataset: {', '.join(names)}: {longest} tokens make no window of block_size "
            f"{block_size} + 1 tokens: take a smaller train.dataset_args.block_size, or more text"
        )
    return TokenSource(
        files=files,
        names=names,
        block_size=block_size,
        vocab_size=vocab_size,
        digest=hashlib.sha256(" ".join(digests).encode()).hexdigest(),
        bytes_per_token=bytes_per_token,
    )
