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
from collections.abc import Callable, Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Self, TypeVar

from .. import shared_files
from ..errors import RecordError
from . import manifest, part_file
from .manifest import DamageError as DamageError
from .manifest import FileDigest, Manifest
from .names import MANIFEST
from .part_file import PartFile

RETRY_DELAYS_S = (0.5, 1.0, 2.0, 4.0)
LASTING = {errno.ENOENT, errno.ENOTDIR}

Value = TypeVar("Value")


class Contents:
    """The files of a committed checkpoint; each byte that it returns agrees with the manifest.

    manifest: that of the checkpoint.
    Every method raises DamageError, or OSError if a later attempt may be able to read the files.
    """

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        self.directory = directory
        self.manifest = manifest
        self._digests = {file.name: file.digest for file in manifest.files}
        self._opened = contextlib.ExitStack()
        self._parts: dict[str, PartFile] = {}
        self._places: dict[str, Mapping[str, tuple[int, int]]] = {}
        self._is_fresh = False  # the cache of this host was dropped

    @classmethod
    def open(cls, directory: Path) -> Self:
        """Open a checkpoint. Raises as `read_manifest`."""
        return cls(directory, read_manifest(directory))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._opened.close()
        self._parts.clear()

    @property
    def bytes_read(self) -> int:
        """The bytes that were read of the files of ranks."""
        return sum(part.bytes_read for part in self._parts.values())

    def read(self, name: str) -> bytes:
        """Return the content of a file that is no rank's."""
        with _bad_sectors_are_damage():
            return with_retries(_read, self.directory / name, self._digest(name))

    def places(self, name: str) -> Mapping[str, tuple[int, int]]:
        """Return the first byte of each tensor in a rank's file, and the byte after its last."""
        if name not in self._places:
            length = bytearray(part_file.LENGTH_BYTES)
            self.read_into(name, 0, memoryview(length))
            size = int.from_bytes(length, "little")
            if size > self._digest(name).size:
                raise DamageError(f"{name} ends before the end of its header")
            text = bytearray(size)
            self.read_into(name, len(length), memoryview(text))
            try:
                self._places[name] = part_file.places(bytes(text))
            except manifest.MALFORMED as error:
                raise DamageError(f"{name} has a header that is not the kit's: {error}") from error
        return self._places[name]

    def read_into(self, name: str, offset: int, target: memoryview) -> None:
        """Fill `target` with the bytes of a rank's file from `offset` on."""
        with _bad_sectors_are_damage():
            try:
                with_retries(self._read_into, name, offset, target)
            except DamageError:
                if self._is_fresh:
                    raise
                self._is_fresh = True
                self._parts.clear()
                with contextlib.suppress(OSError):
                    shared_files.forget(self.directory)
                with_retries(self._read_into, name, offset, target)

    def _read_into(self, name: str, offset: int, target: memoryview) -> None:
        try:
            self._part(name).read_into(offset, target)
        except OSError as error:
            self._parts.pop(name, None)  # a file handle may be stale: the next try opens it again
            error.filename = error.filename or str(self.directory / name)
            raise

    def _part(self, name: str) -> PartFile:
        if name not in self._parts:
            path = self.directory / name
            file = self._opened.enter_context(_open(path))
            self._parts[name] = PartFile(path, file, self._digest(name))
        return self._parts[name]

    def _digest(self, name: str) -> FileDigest:
        if name not in self._digests:
            raise DamageError(f"{MANIFEST} lists no {name}")
        return self._digests[name]


def read_manifest(directory: Path) -> Manifest:
    """Return the manifest of a checkpoint.

    Raises: DamageError; UserError if another version of the kit wrote it; OSError.
    """
    # Another one with this name may have been put aside on another host.
    shared_files.ask_again(directory)
    with _bad_sectors_are_damage():
        return with_retries(_manifest, directory)


def check(directory: Path) -> Manifest:
    """Compare all files of a checkpoint with its manifest; return that.

    Raises: DamageError; UserError if another version of the kit wrote it; OSError.
    """
    manifest = read_manifest(directory)
    for file in manifest.files:
        check_file(directory / file.name, file.digest)
    return manifest


def with_retries(call: Callable[..., Value], *args: object) -> Value:
    """Return the result of `call`; repeat it after an OSError, with RETRY_DELAYS_S in between."""
    for delay_s in RETRY_DELAYS_S:
        try:
            return call(*args)
        except OSError:
            time.sleep(delay_s)
    return call(*args)


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
        text = shared_files.begin_of(file)
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
        if path.suffix == part_file.SUFFIX:
            sha256 = part_file.sha256_of(file, size) or "other blocks"
        else:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        expected.check(path.name, size, sha256)


@contextlib.contextmanager
def _open(path: Path) -> Iterator[BufferedReader]:
    """Open a file to read; a lasting error becomes DamageError."""
    try:
        with shared_files.open_binary(path) as file:
            yield file
    except RecordError as error:
        raise DamageError(str(error).removeprefix(f"{path.parent}/")) from error
    except OSError as error:
        if error.errno in LASTING:
            raise DamageError(f"{path.name}: {error.strerror}") from error
        error.filename = error.filename or str(path)
        raise
