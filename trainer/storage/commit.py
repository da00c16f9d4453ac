"""The commit protocol: a checkpoint directory exists completely or not at all. Imports no torch.

A checkpoint is written under a temporary name and renamed when all its bytes are on the disk. A
directory with another name than `step-XXXXXXXX` was never committed. Then the checkpoint is read
back, and only after that older ones are removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Protocol

from slurm_job_kit.jobs.checkpoint_names import checkpoint_name, checkpoint_names, checkpoint_step
from slurm_job_kit.jobs.rundir import fsync_directory
from slurm_job_kit.trainer.errors import TransientStorageError, storage_error
from slurm_job_kit.trainer.storage import reader
from slurm_job_kit.trainer.storage.manifest import (
    BEST,
    LATEST,
    MANIFEST,
    FileDigest,
    Manifest,
    NamedFile,
)

TEMPORARY_PREFIX = ".tmp-"


class Sink(Protocol):
    """A file that bytes are written to, in order."""

    def write(self, data: bytes) -> int: ...


@dataclass(frozen=True)
class PendingCheckpoint:
    """A checkpoint that is not committed yet.

    manifest: its manifest, still without the files.
    files: for each file name the function that writes its content.
    check_before_rename: called directly before each rename that other attempts would see; raises
    if this attempt must not do it.
    """

    manifest: Manifest
    files: Mapping[str, Callable[[Sink], object]]
    check_before_rename: Callable[[], None]

    @property
    def step(self) -> int:
        """The optimizer step after which the state was saved."""
        return self.manifest.global_step


@dataclass(frozen=True)
class Retention:
    """Which committed checkpoints are kept: the newest, multiples of some steps, and the best."""

    keep_last: int
    keep_every_steps: tuple[int, ...] = ()
    best_step: int | None = None

    def keeps(self, step: int) -> bool:
        """Return whether a checkpoint is kept at any age."""
        is_multiple = any(step % every == 0 for every in self.keep_every_steps)
        return is_multiple or step == self.best_step


def commit_and_prune(root: Path, pending: PendingCheckpoint, retention: Retention) -> int:
    """Commit a checkpoint, read it back, then remove older ones; return its size in bytes.

    Raises: StorageError or TransientStorageError; what `check_before_rename` raises.
    """
    doing = f"saving checkpoint {root / checkpoint_name(pending.step)}"
    try:
        name = commit(root, pending)
        manifest = _read_back(root / name, doing)
        # A newer attempt may own the run by now, with its own `latest` and oldest checkpoint.
        pending.check_before_rename()
        write_pointer(root, LATEST, name)
        if retention.best_step is not None:
            point_at_best(root, retention.best_step)
        prune(root, pending.step, retention)
    except OSError as error:
        raise storage_error(error, doing) from error
    return sum(file.digest.size for file in manifest.files)


def commit(root: Path, pending: PendingCheckpoint) -> str:
    """Write a checkpoint and rename it to its final name, durably; return that name."""
    name = checkpoint_name(pending.step)
    with _temporary(root, name) as temporary:
        temporary.mkdir()
        files = [
            NamedFile(file, _write(temporary / file, write))
            for file, write in pending.files.items()
        ]
        text = replace(pending.manifest, files=tuple(files)).to_bytes()
        _write(temporary / MANIFEST, lambda sink: sink.write(text))
        fsync_directory(temporary)
        pending.check_before_rename()
        # A checkpoint of this step may exist that was not loaded; a rename replaces no directory.
        _remove(root / name)
        os.rename(temporary, root / name)
    fsync_directory(root)
    return name


def _read_back(directory: Path, doing: str) -> Manifest:
    """Check a checkpoint that was just committed and return its manifest.

    Raises: TransientStorageError if a file differs from what was written; it is quarantined first.
    """
    try:
        return reader.check(directory)
    except reader.Damaged as error:
        aside = reader.quarantine(directory, str(error))
        text = (
            f"{doing}: it does not read back as it was written ({error}); "
            f"the directory was renamed to {aside}"
        )
        raise TransientStorageError(text) from error


def write_pointer(root: Path, pointer: str, name: str) -> None:
    """Write a checkpoint's name to the file `latest` or `best`.

    Without fsync: after a power failure the file may be old or empty, and no decision depends on it
    alone.
    """
    with _temporary(root, pointer) as temporary:
        temporary.write_text(f"{name}\n", encoding="utf-8")
        os.replace(temporary, root / pointer)


def point_at_best(root: Path, best_step: int) -> None:
    """Write the name of this step's checkpoint to the file `best`, if the checkpoint exists."""
    name = checkpoint_name(best_step)
    if (root / name).is_dir():
        write_pointer(root, BEST, name)


def prune(root: Path, newest_step: int, retention: Retention) -> None:
    """Remove the checkpoints up to `newest_step` that `retention` does not keep.

    The checkpoint of `newest_step` was read back; it is never removed.
    """
    steps = [
        step
        for name in checkpoint_names(root)
        if (step := checkpoint_step(name) or 0) <= newest_step
    ]
    for step in steps[retention.keep_last :]:
        if step != newest_step and not retention.keeps(step):
            _remove(root / checkpoint_name(step))


def remove_leftovers(root: Path) -> None:
    """Remove the temporary files and directories of killed attempts."""
    for name in os.listdir(root):
        if name.startswith(TEMPORARY_PREFIX):
            _discard(root / name)


@contextlib.contextmanager
def _temporary(root: Path, name: str) -> Iterator[Path]:
    """Yield a temporary path; remove its file or directory if the block raises.

    Not jobs.rundir.write_atomic, because a checkpoint is a directory, and because
    `remove_leftovers` finds the files of a killed attempt by this prefix.
    """
    path = root / f"{TEMPORARY_PREFIX}{name}-{secrets.token_hex(4)}"
    try:
        yield path
    except BaseException:
        _discard(path)
        raise


def _discard(path: Path) -> None:
    """Remove a file or directory as far as the file system allows it."""
    shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        os.unlink(path)


def _remove(directory: Path) -> None:
    """Rename a checkpoint before it is deleted, so that half a directory never has its name."""
    aside = directory.with_name(f"{TEMPORARY_PREFIX}old-{directory.name}-{secrets.token_hex(4)}")
    with contextlib.suppress(FileNotFoundError):
        os.rename(directory, aside)
        _discard(aside)


class _HashingSink:
    """Writes to a file and computes size and SHA-256 of the bytes."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()
        self.size = 0
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        try:
            written = self._file.write(data)
        except OSError as error:
            self.error = error
            raise
        self.sha256.update(data)
        self.size += written
        return written

    def flush(self) -> None:
        self._file.flush()


def _write(path: Path, write: Callable[[Sink], object]) -> FileDigest:
    """Write and fsync one file; return size and SHA-256 of the bytes that `write` wrote."""
    with open(path, "xb") as file:
        sink = _HashingSink(file)
        try:
            write(sink)
        except Exception:
            # torch.save turns an OSError of the sink into a RuntimeError of its own.
            if sink.error is not None:
                raise sink.error from None
            raise
        file.flush()
        os.fsync(file.fileno())
    return FileDigest(sink.size, sink.sha256.hexdigest())
