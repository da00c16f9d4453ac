"""Reads a committed checkpoint and checks every byte.

The checksums are the kit's own, because safetensors has none. A missing, short or changed file is
damaged. An error of the file system (ESTALE, EACCES, ETIMEDOUT ...) may pass: the read is repeated
and then the error is raised, because a run must not lose hours of work to a slow server. An EIO
that persists is a bad sector and counts as damage.
"""

import contextlib
import errno
import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Self, TypeVar

from ...base import files
from ...base.errors import RecordError
from . import manifest, part_file
from .manifest import DamageError as DamageError
from .manifest import FileDigest, Manifest
from .names import MANIFEST
from .part_file import PartReader

RETRY_DELAYS_S = (0.5, 1.0, 2.0, 4.0)

Value = TypeVar("Value")
# From the place of each tensor in a file to the memory to fill, with the first byte of each.
Wanted = Callable[[Mapping[str, tuple[int, int]]], Iterable[tuple[int, Iterable[memoryview]]]]


@dataclass(frozen=True)
class Contents:
    """The files of a committed checkpoint.

    Every method raises DamageError, or OSError if a later attempt may be able to read the files.
    """

    directory: Path
    manifest: Manifest

    @classmethod
    def open(cls, directory: Path) -> Self:
        """Return the files of a checkpoint. Raises as `read_manifest`."""
        return cls(directory, read_manifest(directory))

    @property
    def part_names(self) -> list[str]:
        """The names of the files of ranks, in rank order."""
        return sorted(name for name in self.manifest.files if name.endswith(part_file.SUFFIX))

    def read(self, name: str) -> bytes:
        """Return the content of a file that is no rank's, compared with its SHA-256."""
        with _bad_sectors_are_damage():
            return with_retries(_read, self.directory / name, self._digest(name))

    def read_part(self, name: str, wanted: Wanted, is_checked: bool = False) -> None:
        """Fill memory from a rank's file: in one pass, which compares it with its SHA-256.

        wanted: yields memory in the order of the file; it is called again after an OSError.
        is_checked: the file was compared before; nothing else is read of it now.
        """
        with _bad_sectors_are_damage():
            with_retries(_read_part, self.directory / name, self._digest(name), wanted, is_checked)

    def _digest(self, name: str) -> FileDigest:
        if name not in self.manifest.files:
            raise DamageError(f"{MANIFEST} lists no {name}")
        return self.manifest.files[name]


def read_manifest(directory: Path) -> Manifest:
    """Return the manifest of a checkpoint.

    Raises: DamageError; UserError if another version of the kit wrote it; OSError.
    """
    # Another one with this name may have been put aside on another host.
    files.ask_again(directory)
    with _bad_sectors_are_damage():
        return with_retries(_manifest, directory)


def check(directory: Path) -> Manifest:
    """Compare all files of a checkpoint with its manifest; return that.

    Raises: DamageError; UserError if another version of the kit wrote it; OSError.
    """
    manifest = read_manifest(directory)
    for name, digest in manifest.files.items():
        check_file(directory / name, digest)
    return manifest


def with_retries(call: Callable[..., Value], *args: object) -> Value:
    """Return the result of `call`; repeat it after an OSError, with RETRY_DELAYS_S in between."""
    for delay_s in RETRY_DELAYS_S:
        try:
            return call(*args)
        except OSError:
            time.sleep(delay_s)
    return call(*args)


def twice(directory: Path, read: Callable[[Path], Value]) -> Value:
    """Return what `read` returns for a checkpoint.

    Raises: DamageError if it is damaged, also once this host's caches are dropped; OSError.
    """
    with contextlib.suppress(DamageError):
        return read(directory)
    with contextlib.suppress(OSError):
        files.forget(directory)
    return read(directory)


@contextlib.contextmanager
def _bad_sectors_are_damage() -> Iterator[None]:
    """Raise DamageError instead of an EIO that the block raises."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        name = Path(error.filename).name if error.filename else "a file"
        raise DamageError(f"{name}: {error.strerror}") from error


def _manifest(directory: Path) -> Manifest:
    """Read and check a manifest. Raises: DamageError; UserError for another format version."""
    with _open(directory / MANIFEST) as file:
        text = files.begin_of(file)
    try:
        return manifest.parse(text, directory)
    except (ValueError, RecursionError) as error:
        raise DamageError(f"{MANIFEST}: {error}") from error


def _read(path: Path, expected: FileDigest) -> bytes:
    with _open(path) as file:
        expected.check(path.name, os.fstat(file.fileno()).st_size)
        content = file.read()
    expected.check(path.name, len(content), hashlib.sha256(content).hexdigest())
    return content


def _read_part(path: Path, expected: FileDigest, wanted: Wanted, is_checked: bool) -> None:
    with _open(path) as file:
        part = PartReader(path, file, expected, is_checked)
        for offset, memory in wanted(part.places):
            for each in memory:
                part.read_into(offset, each)
                offset += len(each)
        part.check()


def check_file(path: Path, expected: FileDigest) -> None:
    """Read a file that was just written from the disk. Raises: DamageError, OSError."""
    with _bad_sectors_are_damage():
        with_retries(_check, path, expected)


def _check(path: Path, expected: FileDigest) -> None:
    with _open(path) as file:
        size = os.fstat(file.fileno()).st_size
        expected.check(path.name, size)
        # It is in the page cache: drop it there, to read from the disk.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        expected.check(path.name, size, hashlib.file_digest(file, "sha256").hexdigest())


@contextlib.contextmanager
def _open(path: Path) -> Iterator[BufferedReader]:
    """Open a file to read; a lasting error becomes DamageError."""
    try:
        with files.open_binary(path) as file:
            yield file
    except RecordError as error:
        raise DamageError(str(error).removeprefix(f"{path.parent}/")) from error
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            raise DamageError(f"{path.name}: {error.strerror}") from error
        error.filename = error.filename or str(path)
        raise
