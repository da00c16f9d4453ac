"""The commit protocol: a checkpoint directory exists completely or not at all. Imports no torch.

A checkpoint is written under a temporary name. Each rank that has a part of it writes its file
there, with fsync, and reads it back. When all have done that, rank 0 adds its own files and renames
the directory. A directory with another name than `step-XXXXXXXX` was never committed. Older
checkpoints are removed after that.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..contract import (
    LATEST,
    MANIFEST,
    TEMPORARY_PREFIX,
    DamageError,
    HashedSink,
    Manifest,
    NamedFile,
    OwningAttempt,
    checkpoint_name,
    checkpoint_names,
    checkpoint_step,
    files,
    point_at_best,
    reader,
    records,
    write_pointer,
)
from ..errors import Superseded, storage

if TYPE_CHECKING:
    from ..process.run_handle import RunHandle


def check_owner(run: RunHandle) -> None:
    """Raise Superseded unless owner.json names this attempt of this job.

    A node that lost its network may come back after its job was requeued, or after the run was
    given to another job. Its ranks must then change nothing in the run directory.
    """
    owner = records.read(OwningAttempt, run.dir.owner)
    if owner is None:
        now = f"{run.dir.owner} is missing, so no attempt"
    elif (owner.job_id, owner.attempt) != (run.job_id, run.attempt):
        now = f"attempt {owner.attempt} of job {owner.job_id}"
    else:
        return
    what = f"{now} owns {run.dir.path} now, this is attempt {run.attempt} of job {run.job_id}"
    raise Superseded(f"{what}: nothing is committed")


Write = Callable[[HashedSink], object]  # writes the content of a rank's file


@dataclass(frozen=True)
class PendingCheckpoint:
    """A checkpoint that is not committed yet.

    files: of rank 0, by name: the content, or of the file of a rank what writes it.
    parts: the files that ranks have written before, under `temporary_directory`.
    check_before_rename: called directly before each rename that other attempts would see; raises
    if this attempt must not do it.
    """

    manifest: Manifest
    files: Mapping[str, Write | bytes]
    check_before_rename: Callable[[], None]
    parts: tuple[NamedFile, ...] = ()

    @property
    def step(self) -> int:
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


def commit_and_prune(root: Path, pending: PendingCheckpoint, retention: Retention) -> None:
    """Commit a checkpoint, then remove older ones.

    Raises: StorageError or TransientStorageError; what `check_before_rename` raises.
    """
    with storage(f"saving checkpoint {root / checkpoint_name(pending.step)}"):
        commit(root, pending)
        # A newer attempt may own the run by now, with its own `latest` and oldest checkpoint.
        pending.check_before_rename()
        write_pointer(root, LATEST, checkpoint_name(pending.step))
        point_at_best(root, retention.best_step)
        prune(root, pending.step, retention)


def commit(root: Path, pending: PendingCheckpoint) -> None:
    """Write a checkpoint and rename it to its final name, durably.

    Raises: OSError, also if a file does not read back as it was written.
    """
    temporary = temporary_directory(root, pending.step, pending.manifest.attempt)
    with discarded_on_error(temporary):
        temporary.mkdir(exist_ok=bool(pending.parts))
        own = [write_file(temporary / file, each) for file, each in pending.files.items()]
        text = replace(pending.manifest, files=dict((*pending.parts, *own))).to_bytes()
        write_file(temporary / MANIFEST, text)
        for part, digest in pending.parts:  # of other ranks: this host may not see them whole
            with files.open_binary(temporary / part) as file:  # a stat may have an old size
                size = os.fstat(file.fileno()).st_size
            if size != digest.size:
                what = f"has {size} bytes on this node, its rank wrote {digest.size}"
                raise OSError(errno.EIO, what, part)
        publish(temporary, root / checkpoint_name(pending.step), pending.check_before_rename)


def publish(
    temporary: Path, checkpoint: Path, check_before_rename: Callable[[], None] = lambda: None
) -> None:
    """Give a directory whose files are durable the name of a committed checkpoint."""
    files.fsync_directory(temporary)
    check_before_rename()
    # A checkpoint of this step may exist that was not loaded; a rename replaces no directory.
    _remove(checkpoint)
    os.rename(temporary, checkpoint)
    files.fsync_directory(checkpoint.parent)


def temporary_directory(root: Path, step: int, attempt: int) -> Path:
    """Return the name under which all ranks of an attempt write a checkpoint."""
    return root / f"{TEMPORARY_PREFIX}{checkpoint_name(step)}-attempt-{attempt}"


def prune(root: Path, newest_step: int, retention: Retention) -> None:
    """Remove the checkpoints up to `newest_step` that `retention` does not keep.

    The checkpoint of `newest_step` was read back; it is never removed.
    """
    steps = [checkpoint_step(name) or 0 for name in checkpoint_names(root)]
    past = [step for step in steps if step <= newest_step]
    for step in past[retention.keep_last :]:
        if step != newest_step and not retention.keeps(step):
            _remove(root / checkpoint_name(step))


def remove_leftovers(root: Path) -> None:
    """Remove the temporary files and directories of killed attempts."""
    for name in files.listdir(root):
        if name.startswith(TEMPORARY_PREFIX) or name.endswith(".tmp"):  # of files.replacing
            _discard(root / name)


@contextlib.contextmanager
def discarded_on_error(path: Path) -> Iterator[None]:
    """Remove a temporary file or directory if the block raises."""
    try:
        yield
    except BaseException:
        _discard(path)
        raise


def _discard(path: Path) -> None:
    """Remove a file or directory as far as the file system allows it."""
    shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        os.unlink(path)


def _remove(directory: Path) -> None:
    """Delete a checkpoint, renamed before, so that half a directory never has its name."""
    aside = directory.with_name(f"{TEMPORARY_PREFIX}old-{directory.name}-{secrets.token_hex(4)}")
    files.ask_again(directory)
    with contextlib.suppress(FileNotFoundError):
        os.rename(directory, aside)
        _discard(aside)


def write_file(path: Path, content: Write | bytes) -> NamedFile:
    """Write and fsync one file; raise OSError if it does not read back as it was written."""
    with open(path, "wb") as file:
        sink = HashedSink(file)
        if isinstance(content, bytes):
            sink.write(content)
        else:
            content(sink)
        file.flush()
        os.fsync(file.fileno())
    try:
        reader.check_file(path, sink.digest())
    except DamageError as error:
        what = f"it does not read back as it was written ({error})"
        raise OSError(errno.EIO, what, str(path)) from error
    return path.name, sink.digest()
