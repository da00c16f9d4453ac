"""The checkpoints of a script: each is whole, which a file with check sums shows, or is put aside.

A checkpoint is a folder `checkpoint-STEP` of any files. `whole.json` in it, which is written last,
has the size and SHA-256 of each other file. Names and renames are those of the kit's own
checkpoints (`trainer/checkpoint`). Imports no torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from pathlib import Path

from ...checkpoint.commit import publish
from ...checkpoint.recovery import quarantine
from ...contract import MALFORMED, TEMPORARY_PREFIX, files

WHOLE = "whole.json"
KEPT = 2  # checkpoints
# What shows a damage. Any other error of a disk may pass: it ends the attempt.
_DAMAGES = (FileNotFoundError, NotADirectoryError, IsADirectoryError, *MALFORMED)
_NAME = re.compile(r"checkpoint-(\d+)")


def new_folder(root: Path, step: int) -> Path:
    """Return an empty folder with a temporary name, for the checkpoint of a step."""
    folder = temporary_folder(root, step)
    shutil.rmtree(folder, ignore_errors=True)  # of an attempt that was killed
    folder.mkdir(parents=True)
    return folder


def temporary_folder(root: Path, step: int) -> Path:
    return root / f"{TEMPORARY_PREFIX}checkpoint-{step}"


def commit(root: Path, step: int) -> None:
    """Seal the folder of `new_folder`, rename it, and delete all but the KEPT newest ones."""
    folder = temporary_folder(root, step)
    seal(folder)
    publish(folder, root / f"checkpoint-{step}")
    for name in names(root)[KEPT:]:
        shutil.rmtree(root / name)


def seal(folder: Path) -> None:
    """Write `whole.json`, after all other files are durable."""
    digests = {}
    for name in _files(folder):
        with open(folder / name, "rb") as file:
            os.fsync(file.fileno())
        digests[name] = _digest(folder / name)
        files.fsync_directory((folder / name).parent)
    files.write_atomic(folder / WHOLE, json.dumps({"files": digests}, indent=1))


def names(root: Path) -> list[str]:
    """Return the names of the checkpoints in a folder, newest first."""
    found = filter(_NAME.fullmatch, files.names_in(root))
    return sorted(found, key=lambda name: int(name.partition("-")[2]), reverse=True)


def newest(root: Path) -> Path | None:
    """Return the newest whole checkpoint; a newer one that is not whole is renamed and reported."""
    for name in names(root):
        if (reason := damage(root / name)) is None:
            return root / name
        aside = quarantine(root / name, reason)
        print(f"checkpoint {root / name} is not whole and now {aside.name}: {reason}", flush=True)
    return None


def damage(folder: Path) -> str | None:
    """Return how a checkpoint differs from its `whole.json`, or None. Raises: OSError."""
    try:
        digests = json.loads(files.read_text(folder / WHOLE))["files"]
        for name, digest in digests.items():
            if _digest(folder / name) != digest:
                return f"{name} has other bytes than those that were written"
    except _DAMAGES as error:
        return f"{type(error).__name__}: {error}"
    return None


def _files(folder: Path) -> list[str]:
    """Return the relative paths of all files in a folder and below, but for `whole.json`."""
    found = []
    for name in files.names_in(folder):
        if (folder / name).is_dir():
            found += [f"{name}/{inner}" for inner in _files(folder / name)]
        elif name != WHOLE:
            found.append(name)
    return found


def _digest(path: Path) -> list[int | str]:
    with files.open_binary(path) as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return [file.tell(), sha256]
