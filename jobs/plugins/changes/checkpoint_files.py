"""Checks and copies a committed checkpoint, and puts newer ones aside.

Only while no attempt of the run writes: the trainer alone commits, prunes and quarantines.
"""

import os
import secrets
import shutil
from pathlib import Path

from ...base import files
from ...base.console import print_line
from ...base.errors import UserError
from ...contract.checkpoint import reader
from ...contract.checkpoint.manifest import Manifest
from ...contract.checkpoint.names import (
    ASIDE_PREFIX,
    BEST,
    LATEST,
    TEMPORARY_PREFIX,
    checkpoint_names,
    free_name,
    is_newer,
    name_of_step,
    point_at_best,
    write_pointer,
)
from ...contract.records.frozen import Revision
from ...contract.rundir import RunDir
from ...runs import revision


def verify(directory: Path) -> Manifest:
    """Compare a checkpoint with its manifest; return that. Raises: UserError, OSError."""
    try:
        return reader.check(directory)
    except reader.DamageError as error:
        what = f"checkpoint {directory} is damaged: {error}"
        raise UserError(what, "choose another checkpoint") from error


def copy(directory: Path, root: Path) -> Manifest:
    """Copy a checkpoint into the folder `root` of another run and check the copy.

    It gets its name when all its bytes are on the disk. A copy and no link: the run that it comes
    from removes its older checkpoints. Raises: UserError, OSError.
    """
    temporary = root / f"{TEMPORARY_PREFIX}{directory.name}-{secrets.token_hex(4)}"
    try:
        temporary.mkdir()  # not by copytree: modes and group are those of this run
        for path in directory.iterdir():
            shutil.copyfile(path, temporary / path.name)
        for path in temporary.iterdir():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
        manifest = verify(temporary)
        files.fsync_directory(temporary)
        os.rename(temporary, root / directory.name)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    files.fsync_directory(root)
    write_pointer(root, LATEST, directory.name)
    point_at_best(root, manifest.best.step)
    return manifest


def go_on_from(run_dir: RunDir, name: str) -> Revision:
    """Return the change that makes `name` the newest checkpoint; print the newer ones.

    They are renamed, the newest first: after a kill the rest is still a state of the run.
    Raises: UserError for a damaged checkpoint.
    """
    root = run_dir.checkpoints
    best = name_of_step(root, verify(root / name).best.step)
    newer = [each for each in checkpoint_names(root) if is_newer(each, name)]
    if newer:
        print_line(f"put aside: {', '.join(newer)}")
    asides = {each: free_name(root / each, ASIDE_PREFIX).name for each in newer}
    moves = {f"{root.name}/{old}": f"{root.name}/{new}" for old, new in asides.items()}
    texts = {root / LATEST: f"{name}\n", root / BEST: best and f"{best}\n"}
    return Revision(moves=moves) + revision.of_files(run_dir, texts)
