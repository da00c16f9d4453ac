"""What an ended run no longer needs, and runs that never started."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import Path

from ..checkpoint.names import (
    ASIDE_PREFIX,
    BEST,
    LATEST,
    QUARANTINE_PREFIX,
    TEMPORARY_PREFIX,
    checkpoint_names,
    checkpoint_step,
    read_pointer,
)
from ..rundir import RunDir
from ..runs import checkpoint_lookup
from ..shared_files import files_in
from ..spec import Spec

# As jobs.rundir.replacing names it; a killed process leaves it behind.
_TEMPORARY = re.compile(r"\..+\.\d+\.tmp")


@dataclass(frozen=True)
class Leftover:
    """A file or folder that may be deleted. run_dir: the run that it belongs to."""

    path: Path
    why: str
    run_dir: RunDir | None = None
    is_checkpoint: bool = False
    is_run: bool = False


def of_run(run_dir: RunDir, is_complete: bool, needed: Set[Path]) -> Iterator[Leftover]:
    """Yield what an ended run no longer needs.

    A run that is not complete may be resumed, so only its temporary files are left over.
    needed: the checkpoints that the specs of other runs name.
    """
    is_foreign = checkpoint_lookup.is_foreign(run_dir)
    for path in files_in(run_dir.path, "*"):
        if _TEMPORARY.fullmatch(path.name) or path.name.startswith(TEMPORARY_PREFIX):
            yield Leftover(path, "a temporary file of a killed process", run_dir)
    if not is_foreign:
        for path in files_in(run_dir.checkpoints, f"{TEMPORARY_PREFIX}*"):
            yield Leftover(path, "a checkpoint that was not committed", run_dir)
    if not is_complete:
        return
    if run_dir.compile_cache.is_dir():
        yield Leftover(run_dir.compile_cache, "the compile cache of a complete run", run_dir)
    if not is_foreign:
        yield from _checkpoints(run_dir, needed)


def _checkpoints(run_dir: RunDir, needed: Set[Path]) -> Iterator[Leftover]:
    spec, kept = Spec.read(run_dir.spec).checkpoint, _latest_and_best(run_dir)
    every = spec.keep_every_steps
    for path in files_in(run_dir.checkpoints, "*"):
        step = checkpoint_step(path.name)
        is_kept = step in kept or (every is not None and step is not None and step % every == 0)
        why = None
        if path.name.startswith(QUARANTINE_PREFIX):
            why = "a damaged checkpoint"
        elif path.name.startswith(ASIDE_PREFIX):
            why = "a checkpoint that a resume from an older one put aside"
        # How many steps an epoch has is not known here: each checkpoint may be at an epoch's end.
        elif step is not None and not is_kept and spec.keep_every_epochs is None:
            why = "neither the latest nor the best checkpoint of a complete run"
        if why is not None and path.resolve() not in needed:
            yield Leftover(path, why, run_dir, is_checkpoint=True)


def _latest_and_best(run_dir: RunDir) -> set[int | None]:
    names = checkpoint_names(run_dir.checkpoints)[:1]
    names += [read_pointer(run_dir.checkpoints, pointer) or "" for pointer in (LATEST, BEST)]
    return set(map(checkpoint_step, names))


def named_by_specs(run_dirs: list[RunDir]) -> set[Path]:
    """Return the paths of train.init_from of all runs, and the folders that these paths lie in.

    A run reads them until its first checkpoint. Raises: UserError, OSError for a damaged spec.
    """
    paths: set[Path] = set()
    for run_dir in run_dirs:
        if (named := Spec.read(run_dir.spec).train.init_from) is not None:
            path = Path(named).expanduser().resolve()
            paths |= {path, *path.parents}
    return paths


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files below a folder; links count as themselves."""
    if path.is_symlink() or not path.is_dir():
        return path.lstat().st_size
    size = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                size += os.lstat(os.path.join(folder, name)).st_size
            except FileNotFoundError:  # deleted meanwhile
                continue
    return size
