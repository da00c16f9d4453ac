"""Reads committed checkpoints and checks every byte; renames damaged ones. Imports no torch.

The checksums are the kit's own, because `torch.load` accepts flipped bits (torch 2.13). A missing,
short or changed file is damaged for good: the checkpoint is quarantined and the next older one is
used. An error of the file system (ESTALE, EACCES, ETIMEDOUT ...) may pass: the read is repeated and
then the error is raised, because a run must not lose hours of work to a slow server. An EIO that
persists is a bad sector and counts as damage. If the server is broken instead, the rename of the
quarantine fails as well, and no checkpoint is renamed.
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

from slurm_job_kit.jobs import records
from slurm_job_kit.jobs.checkpoint_names import (
    ASIDE_PREFIX,
    QUARANTINE_PREFIX,
    checkpoint_names,
    checkpoint_step,
)
from slurm_job_kit.jobs.records.ended import NewestCheckpoint
from slurm_job_kit.jobs.rundir import RunDir, fsync_directory
from slurm_job_kit.trainer.errors import UserError
from slurm_job_kit.trainer.storage import manifest
from slurm_job_kit.trainer.storage.manifest import LATEST, MANIFEST, FileDigest, Manifest

REASON = "REASON"
PART_BYTES = 2**20
RETRY_DELAYS_S = (0.5, 1.0, 2.0, 4.0)
LASTING = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENXIO}

# The files of a checkpoint in memory, whose bytes agree with its manifest; the caller closes them.
Files = dict[str, BinaryIO]
Value = TypeVar("Value")
Given = ParamSpec("Given")


class Damaged(Exception):
    """A committed checkpoint has other bytes than those that were written."""


def read(directory: Path) -> tuple[Manifest, Files]:
    """Read a committed checkpoint; return its manifest and its files.

    Raises: Damaged; UserError if another version of the kit wrote it; OSError if a later attempt
    may be able to read it.
    """
    with _bad_sectors_are_damage():
        found = _retried(_manifest, directory)
        return found, {
            file.name: _retried(_read, directory / file.name, file.digest) for file in found.files
        }


def check(directory: Path) -> Manifest:
    """Compare all files of a checkpoint with its manifest; return that. Raises as `read`."""
    with _bad_sectors_are_damage():
        found = _retried(_manifest, directory)
        for file in found.files:
            _retried(_check, directory / file.name, file.digest)
        return found


class KnownCheckpoints(NamedTuple):
    """The checkpoints of a run.

    present: their names in the folder, newest first.
    newest: the newest one that the run is known to have had; None before its first.
    """

    present: list[str]
    newest: str | None


def read_newest(
    root: Path, names: list[str], parse: Callable[[Files], Value], report: Callable[[str], None]
) -> Value | None:
    """Return what `parse` returns for the files of the first undamaged one of `names`, or None.

    Damaged ones are reported and quarantined; `parse` may raise Damaged, too.
    """
    for name in names:
        try:
            _, files = read(root / name)
            with contextlib.ExitStack() as opened:
                for file in files.values():
                    opened.enter_context(file)
                return parse(files)
        except Damaged as error:
            aside = quarantine(root / name, str(error))
            report(f"checkpoint {root / name} is damaged and now {aside.name}: {error}")
    return None


def read_newest_of_run(
    run_dir: RunDir,
    known: KnownCheckpoints,
    parse: Callable[[Files], Value],
    report: Callable[[str], None],
) -> Value:
    """Return what `read_newest` reads of a run that had a checkpoint.

    Raises: UserError if it has no undamaged one now: it must not start again at step 0 unless the
    user asks for that.
    """
    root = run_dir.checkpoints
    if known.present and known.newest not in known.present:
        report(f"checkpoint {known.newest} is missing from {root}: continuing from an older one")
    newest = read_newest(root, known.present, parse, report)
    if newest is None:
        raise UserError(
            f"the run had checkpoint {known.newest}, but {root} has no undamaged one: bring its "
            "files back and resume, or begin a new run; nothing was overwritten"
        )
    return newest


def known_of_run(run_dir: RunDir) -> KnownCheckpoints:
    """Return the checkpoints of a run; none before the folder is there. Raises: OSError."""
    root = run_dir.checkpoints
    present = _retried(checkpoint_names, root) if root.is_dir() else []
    return KnownCheckpoints(present, newest_known(run_dir, present))


def newest_known(run_dir: RunDir, present: list[str]) -> str | None:
    """Return the newest checkpoint that the run is known to have had; None before its first.

    present: the names of the checkpoints in the folder, newest first. The file `latest` and the
    newest record of an attempt with a checkpoint may name newer ones, which existed. Those that a
    user put aside, to go on from an older one, do not count.
    """
    names, root = present[:1], run_dir.checkpoints
    with contextlib.suppress(OSError, UnicodeDecodeError):  # the file may be missing or damaged
        names.append((root / LATEST).read_text(encoding="utf-8").strip())
    attempts = _retried(records.read_lines, NewestCheckpoint, run_dir.attempts)
    names += [attempt.checkpoint for attempt in attempts if attempt.checkpoint is not None][-1:]
    left = [
        name for name in names if name in present or not (root / f"{ASIDE_PREFIX}{name}").exists()
    ]
    steps = {name: step for name in left if (step := checkpoint_step(name)) is not None}
    return max(steps, key=lambda name: steps[name], default=None)


def quarantine(directory: Path, reason: str) -> Path:
    """Rename a damaged checkpoint and write the reason into it; return its new path."""
    aside = directory.with_name(QUARANTINE_PREFIX + directory.name)
    number = 1
    while os.path.lexists(aside):
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


def _check(path: Path, expected: FileDigest) -> None:
    with _open(path) as file:
        _check_size(path, os.fstat(file.fileno()).st_size, expected)
        # A file that was just written is in the page cache: drop it there, to read from the disk.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        _check_sha256(path, hashlib.file_digest(file, "sha256").hexdigest(), expected)


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
        with open(path, "rb", opener=_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise Damaged(f"{path.name} is not a regular file")
            yield file
    except OSError as error:
        if error.errno in LASTING:
            raise Damaged(f"{path.name}: {error.strerror}") from error
        error.filename = error.filename or str(path)
        raise


def _without_waiting(name: str, flags: int) -> int:
    """Open a file without blocking: a FIFO without a writer would block for ever."""
    return os.open(name, flags | os.O_NONBLOCK)
