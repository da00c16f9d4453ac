"""Checks and copies a committed checkpoint, and puts newer ones aside.

Only while no attempt of the run writes: the trainer alone commits, prunes and quarantines.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from .. import shared_files
from ..checkpoint import reader
from ..checkpoint.manifest import Manifest
from ..checkpoint.names import (
    ASIDE_PREFIX,
    BEST,
    LATEST,
    TEMPORARY_PREFIX,
    checkpoint_names,
    free_name,
    is_newer,
    point_at_best,
    write_pointer,
)
from ..errors import UserError
from ..rundir import RunDir, fsync_directory, write_atomic


def verify(directory: Path) -> Manifest:
    """Compare all files of a checkpoint with its manifest; return that.

    Raises: UserError for a damaged checkpoint, OSError.
    """
    try:
        return reader.check(directory)
    except reader.DamageError as error:
        raise UserError(
            f"checkpoint {directory} is damaged: {error}\n  hint: choose another checkpoint"
        ) from error


def copy(directory: Path, root: Path) -> Manifest:
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
        for path in temporary.iterdir():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
        manifest = verify(temporary)
        fsync_directory(temporary)
        os.rename(temporary, root / directory.name)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    fsync_directory(root)
    point(root, directory.name, manifest)
    return manifest


def point(root: Path, name: str, manifest: Manifest) -> None:
    """Write the pointers for `name` as the newest checkpoint; `best` only where that exists."""
    write_pointer(root, LATEST, name)
    if not point_at_best(root, manifest.best.step):
        (root / BEST).unlink(missing_ok=True)


def newer_than(run_dir: RunDir, name: str) -> list[str]:
    """Return the names of the committed checkpoints after `name`, newest first."""
    return [each for each in checkpoint_names(run_dir.checkpoints) if is_newer(each, name)]


@contextlib.contextmanager
def newest_is(run_dir: RunDir, name: str) -> Iterator[None]:
    """Run a block in which `name` is the newest checkpoint; if it fails, newer ones come back.

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
            aside = free_name(root / each, ASIDE_PREFIX)
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
