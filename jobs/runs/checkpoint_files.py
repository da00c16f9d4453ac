"""Checks and copies a committed checkpoint, and puts newer ones aside.

Only while no attempt of the run writes: the trainer alone commits, prunes and quarantines.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from slurm_job_kit.jobs import checkpoint_blocks, records, shared_files
from slurm_job_kit.jobs.checkpoint_names import (
    ASIDE_PREFIX,
    BEST,
    LATEST,
    MANIFEST,
    checkpoint_name,
    is_newer,
)
from slurm_job_kit.jobs.errors import UserError
from slurm_job_kit.jobs.records import RecordError
from slurm_job_kit.jobs.records.training import StoredCheckpoint
from slurm_job_kit.jobs.rundir import RunDir, fsync_directory, write_atomic
from slurm_job_kit.jobs.runs import checkpoints

TEMPORARY_PREFIX = ".tmp-"  # the trainer removes what has such a name


def verify(directory: Path) -> StoredCheckpoint:
    """Compare all files of a checkpoint with its manifest; returns that.

    Raises: UserError for a damaged checkpoint, OSError.
    """
    shared_files.ask_again(directory)  # another host may have put one of this name aside
    try:
        found = records.read(StoredCheckpoint, directory / MANIFEST)
    except RecordError as error:
        raise UserError(f"checkpoint {directory} is damaged: {error}") from error
    if found is None:
        raise UserError(f"checkpoint {directory} has no {MANIFEST}, or was removed just now")
    for each in found.files:
        try:
            with shared_files.open_binary(directory / each.name) as file:
                size = os.fstat(file.fileno()).st_size
                sha256: str | None
                if each.digest.block_bytes is None:
                    sha256 = hashlib.file_digest(file, "sha256").hexdigest()
                else:
                    sha256 = checkpoint_blocks.sha256_of(file, size)
        except FileNotFoundError as error:
            raise UserError(f"checkpoint {directory} has no {each.name}") from error
        if (size, sha256) != (each.digest.size, each.digest.sha256):
            raise UserError(
                f"checkpoint {directory} is damaged: {each.name} does not agree with its SHA-256\n"
                "  hint: choose another checkpoint"
            )
    return found


def copy(directory: Path, root: Path) -> StoredCheckpoint:
    """Copy a checkpoint into the folder `root` of another run and check the copy.

    It gets its name when all its bytes are on the disk. A copy and no link: the run that it comes
    from removes its older checkpoints. Raises: UserError, OSError.
    """
    temporary = root / f"{TEMPORARY_PREFIX}{directory.name}-{secrets.token_hex(4)}"
    try:
        try:
            shutil.copytree(directory, temporary)
        except (shutil.Error, FileNotFoundError) as error:
            raise UserError(f"checkpoint {directory} cannot be copied: {error}") from error
        found = verify(temporary)
        for path in temporary.iterdir():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
        fsync_directory(temporary)
        os.rename(temporary, root / directory.name)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    fsync_directory(root)
    point(root, directory.name, found)
    return found


def point(root: Path, name: str, manifest: StoredCheckpoint) -> None:
    """Write the pointers for `name` as the newest checkpoint; `best` only where that exists."""
    write_atomic(root / LATEST, f"{name}\n")
    best = None if manifest.best.step is None else checkpoint_name(manifest.best.step)
    if best is not None and shared_files.is_dir(root / best):
        write_atomic(root / BEST, f"{best}\n")
    else:
        (root / BEST).unlink(missing_ok=True)


def newer_than(run_dir: RunDir, name: str) -> list[str]:
    """The names of the committed checkpoints after `name`, newest first."""
    return [each for each in checkpoints.committed(run_dir) if is_newer(each, name)]


@contextlib.contextmanager
def newest_is(run_dir: RunDir, name: str) -> Iterator[None]:
    """A block in which `name` is the newest checkpoint; if it fails, newer ones come back.

    Newer ones are renamed, the newest first: after a kill the rest is still a state of the run.
    Raises: UserError for a damaged checkpoint.
    """
    root = run_dir.checkpoints
    manifest = verify(root / name)
    files = (root / LATEST, root / BEST)
    texts = {file: shared_files.read_text(file) for file in files if shared_files.exists(file)}
    renamed: list[tuple[Path, Path]] = []
    try:
        for each in newer_than(run_dir, name):
            aside = _free_name(root, each)
            shared_files.ask_again(root / each)
            os.rename(root / each, aside)
            renamed.append((root / each, aside))
        point(root, name, manifest)
        yield
    except BaseException:
        for was, aside in reversed(renamed):
            os.rename(aside, was)
        for file, text in texts.items():
            write_atomic(file, text)
        raise


def _free_name(root: Path, name: str) -> Path:
    aside, number = root / f"{ASIDE_PREFIX}{name}", 1
    while shared_files.exists(aside):
        number += 1
        aside = root / f"{ASIDE_PREFIX}{name}.{number}"
    return aside
