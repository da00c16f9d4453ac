"""Reads committed checkpoints and checks every byte; renames damaged ones. Imports no torch.

The checksums are the kit's own, because `torch.load` accepts flipped bits (torch 2.13). A missing,
short or changed file, which is so after this host's caches were dropped, is damaged for good: the
checkpoint is quarantined and the next older one is used. An error of the file system (ESTALE,
EACCES, ETIMEDOUT ...) may pass: the read is repeated and then the error is raised, because a run
must not lose hours of work to a slow server. An EIO that persists is a bad sector and counts as
damage. If the server is broken instead, the rename of the quarantine fails as well, and no
checkpoint is renamed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, NamedTuple, ParamSpec, TypeVar

from slurm_job_kit.jobs import checkpoint_blocks, records, shared_files
from slurm_job_kit.jobs.checkpoint_names import (
    ASIDE_PREFIX,
    QUARANTINE_PREFIX,
    checkpoint_names,
    checkpoint_step,
)
from slurm_job_kit.jobs.records.ended import NewestCheckpoint
from slurm_job_kit.jobs.rundir import RunDir, fsync_directory
from slurm_job_kit.trainer.errors import NoCheckpointLeft
from slurm_job_kit.trainer.storage import manifest
from slurm_job_kit.trainer.storage.manifest import LATEST, MANIFEST, FileDigest, Manifest
from slurm_job_kit.trainer.storage.manifest import Damaged as Damaged
from slurm_job_kit.trainer.storage.part_file import PartFile

REASON = "REASON"
PART_BYTES = 2**20
RETRY_DELAYS_S = (0.5, 1.0, 2.0, 4.0)
LASTING = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENXIO}

Value = TypeVar("Value")
Given = ParamSpec("Given")


class Contents:
    """The files of a committed checkpoint; each byte that it returns agrees with the manifest.

    manifest: that of the checkpoint.
    Every method raises Damaged, or OSError if a later attempt may be able to read the files.
    """

    def __init__(self, directory: Path, found: Manifest) -> None:
        self.directory = directory
        self.manifest = found
        self._digests = {file.name: file.digest for file in found.files}
        self._opened = contextlib.ExitStack()
        self._parts: dict[str, PartFile] = {}
        self._is_fresh = False  # the cache of this host was dropped

    @classmethod
    def open(cls, directory: Path) -> Contents:
        """Read the manifest of a checkpoint.

        Raises: Damaged; UserError if another version of the kit wrote it; OSError.
        """
        # Another one with this name may have been put aside on another host.
        shared_files.ask_again(directory)
        with _bad_sectors_are_damage():
            return cls(directory, _retried(_manifest, directory))

    def __enter__(self) -> Contents:
        return self

    def __exit__(self, *exception: object) -> None:
        self._opened.close()
        self._parts.clear()

    @property
    def bytes_read(self) -> int:
        """The bytes that were read of the files of ranks."""
        return sum(part.bytes_read for part in self._parts.values())

    def file(self, name: str) -> BinaryIO:
        """Return a copy of a file in memory; it is closed with the contents."""
        with _bad_sectors_are_damage():
            copy = _retried(_read, self.directory / name, self._digest(name))
            return self._opened.enter_context(copy)

    def read_into(self, name: str, offset: int, target: memoryview) -> None:
        """Fill `target` with the data of a rank's file from `offset` on."""
        with _bad_sectors_are_damage():
            try:
                _retried(self._read_into, name, offset, target)
            except Damaged:
                if self._is_fresh:
                    raise
                self._is_fresh = True
                self._parts.clear()
                with contextlib.suppress(OSError):
                    shared_files.forget(self.directory)
                _retried(self._read_into, name, offset, target)

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
            raise Damaged(f"{MANIFEST} lists no {name}")
        return self._digests[name]


def check(directory: Path) -> Manifest:
    """Compare all files of a checkpoint with its manifest; return that. Raises as `Contents`."""
    contents = Contents.open(directory)
    for file in contents.manifest.files:
        check_file(directory / file.name, file.digest)
    return contents.manifest


class KnownCheckpoints(NamedTuple):
    """The checkpoints of a run.

    present: their names in the folder, newest first.
    newest: the newest one that the run is known to have had; None before its first.
    """

    present: list[str]
    newest: str | None


def read_newest(
    root: Path, names: list[str], parse: Callable[[Contents], Value], report: Callable[[str], None]
) -> Value | None:
    """Return what `parse` returns for the first undamaged one of `names`, or None.

    Damaged ones are reported and quarantined; `parse` may raise Damaged, too.
    """
    for name in names:
        try:
            return _parsed(root / name, parse)
        except Damaged as error:
            put_aside(root / name, str(error), report)
    return None


def _parsed(directory: Path, parse: Callable[[Contents], Value]) -> Value:
    """Return what `parse` returns for a checkpoint. Raises: Damaged, OSError.

    It is damaged only if it still is once this host's caches are dropped: they may be old.
    """
    with contextlib.suppress(Damaged), Contents.open(directory) as contents:
        return parse(contents)
    with contextlib.suppress(OSError):
        shared_files.forget(directory)
    with Contents.open(directory) as contents:
        return parse(contents)


def read_newest_of_run(
    run_dir: RunDir,
    known: KnownCheckpoints,
    parse: Callable[[Contents], Value],
    report: Callable[[str], None],
) -> Value:
    """Return what `read_newest` reads of a run that had a checkpoint.

    Raises: NoCheckpointLeft if it has no undamaged one now: it must not start again at step 0
    unless the user asks for that.
    """
    root, names = run_dir.checkpoints, known.present
    if known.newest is not None and known.newest not in names:
        if shared_files.is_dir(root / known.newest):  # by its name: the listing may be old
            names = [known.newest, *names]
        elif names and not shared_files.exists(root / f"{QUARANTINE_PREFIX}{known.newest}"):
            what = f"checkpoint {known.newest} is missing from {root}"
            report(f"{what}: continuing from an older one")
    newest = read_newest(root, names, parse, report)
    if newest is None:
        raise NoCheckpointLeft(
            f"the run had checkpoint {known.newest}, but {root} has no undamaged one: bring its "
            "files back and resume, or begin a new run; nothing was overwritten"
        )
    return newest


def known_of_run(run_dir: RunDir) -> KnownCheckpoints:
    """Return the checkpoints of a run; none before the folder is there. Raises: OSError."""
    root = run_dir.checkpoints
    present = _retried(checkpoint_names, root) if shared_files.is_dir(root) else []
    return KnownCheckpoints(present, newest_known(run_dir, present))


def newest_known(run_dir: RunDir, present: list[str]) -> str | None:
    """Return the newest checkpoint that the run is known to have had; None before its first.

    present: the names of the checkpoints in the folder, newest first. The file `latest` and the
    newest record of an attempt with a checkpoint may name newer ones, which existed. Those that a
    user put aside, to go on from an older one, do not count.
    """
    names, root = present[:1], run_dir.checkpoints
    with contextlib.suppress(OSError, UnicodeDecodeError):  # the file may be missing or damaged
        names.append(shared_files.read_text(root / LATEST).strip())
    attempts = _retried(records.read_lines, NewestCheckpoint, run_dir.attempts)
    names += [attempt.checkpoint for attempt in attempts if attempt.checkpoint is not None][-1:]
    left = [
        name
        for name in names
        if name in present or not shared_files.exists(root / f"{ASIDE_PREFIX}{name}")
    ]
    steps = {name: step for name in left if (step := checkpoint_step(name)) is not None}
    return max(steps, key=lambda name: steps[name], default=None)


def put_aside(directory: Path, reason: str, report: Callable[[str], None]) -> None:
    """Quarantine a damaged checkpoint and report it."""
    aside = quarantine(directory, reason)
    report(f"checkpoint {directory} is damaged and now {aside.name}: {reason}")


def quarantine(directory: Path, reason: str) -> Path:
    """Rename a damaged checkpoint and write the reason into it; return its new path."""
    aside = directory.with_name(QUARANTINE_PREFIX + directory.name)
    number = 1
    while shared_files.exists(aside):
        number += 1
        aside = directory.with_name(f"{QUARANTINE_PREFIX}{directory.name}.{number}")
    os.rename(directory, aside)
    fsync_directory(directory.parent)
    # It may be a file instead of a directory, or the disk may be full: the log has the reason, too.
    with contextlib.suppress(OSError):
        (aside / REASON).write_text(reason + "\n", encoding="utf-8", errors="backslashreplace")
    return aside


def _retried(call: Callable[Given, Value], *args: Given.args, **kwargs: Given.kwargs) -> Value:
    """Return the result of `call`; repeat it after an OSError, with RETRY_DELAYS_S in between."""
    for delay_s in RETRY_DELAYS_S:
        try:
            return call(*args, **kwargs)
        except OSError:
            time.sleep(delay_s)
    return call(*args, **kwargs)


@contextlib.contextmanager
def _bad_sectors_are_damage() -> Iterator[None]:
    """Raise Damaged instead of an EIO that the block raises."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        name = Path(error.filename).name if error.filename else "a file"
        raise Damaged(f"{name}: {error.strerror}") from error


def _manifest(directory: Path) -> Manifest:
    """Read and check a manifest. Raises: Damaged; UserError for another format version."""
    with _open(directory / MANIFEST) as file:
        text = file.read()
    try:
        return manifest.parse(text, directory)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{MANIFEST}: {error}") from error


def _read(path: Path, expected: FileDigest) -> BinaryIO:
    """Copy a file into memory, and compare the copy: the file may fail or change later."""
    copy, sha256 = os.fdopen(os.memfd_create(path.name), "w+b"), hashlib.sha256()
    try:
        with _open(path) as file:
            _check_size(path, os.fstat(file.fileno()).st_size, expected)
            while part := file.read(PART_BYTES):
                sha256.update(part)
                copy.write(part)
        copy.flush()
        copy.seek(0)
        _check_size(path, os.fstat(copy.fileno()).st_size, expected)
        _check_sha256(path, sha256.hexdigest(), expected)
    except BaseException:
        copy.close()
        raise
    return copy


def check_file(path: Path, expected: FileDigest) -> None:
    """Read a file that was just written from the disk. Raises: Damaged, OSError."""
    with _bad_sectors_are_damage():
        _retried(_check, path, expected)


def _check(path: Path, expected: FileDigest) -> None:
    with _open(path) as file:
        _check_size(path, os.fstat(file.fileno()).st_size, expected)
        # It is in the page cache: drop it there, to read from the disk.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if expected.block_bytes is None:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        else:
            sha256 = checkpoint_blocks.sha256_of(file, expected.size) or "other blocks"
        _check_sha256(path, sha256, expected)


def _check_size(path: Path, size: int, expected: FileDigest) -> None:
    if size != expected.size:
        raise Damaged(f"{path.name} has {size} bytes, not {expected.size}")


def _check_sha256(path: Path, sha256: str, expected: FileDigest) -> None:
    if sha256 != expected.sha256:
        raise Damaged(f"{path.name} does not agree with its SHA-256")


@contextlib.contextmanager
def _open(path: Path) -> Iterator[BufferedReader]:
    """Open a regular file to read; a lasting error becomes Damaged."""
    try:
        with _opened(path) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise Damaged(f"{path.name} is not a regular file")
            yield file
    except OSError as error:
        if error.errno in LASTING:
            raise Damaged(f"{path.name}: {error.strerror}") from error
        error.filename = error.filename or str(path)
        raise


def _opened(path: Path) -> BufferedReader:
    try:
        return open(path, "rb", opener=_without_waiting)
    except FileNotFoundError:
        shared_files.ask_again(path)
        return open(path, "rb", opener=_without_waiting)


def _without_waiting(name: str, flags: int) -> int:
    """Open a file without blocking: a FIFO without a writer would block for ever."""
    return os.open(name, flags | os.O_NONBLOCK)
