"""The checkpoints of a run: the newest one, and those that were found damaged."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from slurm_job_kit.jobs import records
from slurm_job_kit.jobs.checkpoint_names import (
    BEST,
    QUARANTINE_PREFIX,
    checkpoint_name,
    checkpoint_names,
    checkpoint_step,
    newest_first,
)
from slurm_job_kit.jobs.errors import UserError
from slurm_job_kit.jobs.records.training import SavedCheckpoint
from slurm_job_kit.jobs.rundir import RunDir
from slurm_job_kit.jobs.spec import Spec

# How scripts name the files that torch.save and others write.
SUFFIXES = (".pt", ".pth", ".ckpt", ".safetensors")
# Such as outputs/2026-01-01/12-00-00/checkpoints/last.ckpt. The working directory may also have a
# data set of very many folders, which would keep the end of an attempt waiting.
MAX_DEPTH = 4
MAX_FOLDERS = 1000


def newest(run_dir: RunDir, is_users: bool, names: Iterable[str] | None = None) -> str | None:
    """Return the name of the newest committed checkpoint; None if there is none.

    names: those in the folder of checkpoints, if the caller has listed it.

    A user's script (`is_users`) names its files as it likes. If its kit_stop.py has reported the
    step of its newest checkpoint, the name is made of that step. Else it is the time and path of
    the newest file: in the folder of checkpoints, or with one of SUFFIXES in the working directory.
    `is_newer` compares two of any kind.
    """
    if not is_users:
        known = committed(run_dir) if names is None else newest_first(names)
        return next(iter(known), None)
    saved = records.read_leniently(SavedCheckpoint, run_dir.saved)
    if saved is not None:
        return checkpoint_name(saved.step)
    files = chain(_files_of(run_dir.checkpoints), _snapshots_of(run_dir.work))
    return _newest_of(files, run_dir.path)


def committed(run_dir: RunDir) -> list[str]:
    """Return the names of the trainer's committed checkpoints, newest first."""
    try:
        return checkpoint_names(run_dir.checkpoints)
    except FileNotFoundError:
        return []


def find(run_dir: RunDir, text: str) -> str:
    """The name of the committed checkpoint `latest`, `best`, `step-00000012`, `step-12` or `12`.

    Raises: UserError.
    """
    names = committed(run_dir)
    if text == "latest":
        name = names[0] if names else text
    elif text == "best":
        pointer = run_dir.checkpoints / BEST
        name = pointer.read_text(encoding="utf-8").strip() if pointer.is_file() else text
    else:
        number = text.removeprefix("step-")
        name = checkpoint_name(int(number)) if number.isdecimal() else text
    if name not in names:
        has = ", ".join(names) or "none"
        raise UserError(f"{run_dir.run_id} has no checkpoint {text}\n  hint: it has {has}")
    return name


def quarantined(names: Iterable[str]) -> list[str]:
    """Return those of the names that are damaged checkpoints, the oldest step first.

    names: those in the folder of checkpoints.
    """
    found = (name for name in names if name.startswith(QUARANTINE_PREFIX))
    return sorted(found, key=lambda name: (_quarantined_step(name), name))


def _quarantined_step(name: str) -> int:
    """Return the step of a damaged checkpoint, whose name may end in a number such as `.2`."""
    return checkpoint_step(name.removeprefix(QUARANTINE_PREFIX).partition(".")[0]) or 0


def _files_of(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder, except hidden and .tmp files."""
    for parent, _, names in os.walk(folder):
        yield from (Path(parent, n) for n in names if n[0] != "." and not n.endswith(".tmp"))


def _snapshots_of(work: Path) -> Iterator[Path]:
    """Yield the files in a script's working directory whose names are those of checkpoints.

    Folders that lie nearer to the top come first. No link counts: it leads to an input.
    """
    folders = deque([(work, 0)])
    for _ in range(MAX_FOLDERS):
        if not folders:
            return
        folder, depth = folders.popleft()
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False) and depth < MAX_DEPTH:
                    folders.append((Path(entry), depth + 1))
                elif Path(entry).suffix in SUFFIXES and not entry.is_symlink():
                    yield Path(entry)


def _newest_of(files: Iterable[Path], top: Path) -> str | None:
    """Return the time and path, relative to `top`, of the newest file.

    The times come from the file system alone and are compared with each other only.
    """
    found = []
    for path in files:
        with contextlib.suppress(FileNotFoundError):  # the script replaces it right now
            found.append(f"{path.stat().st_mtime_ns:020d} {path.relative_to(top)}")
    return max(found, default=None)


def is_foreign(run_dir: RunDir) -> bool:
    """Whether the ranks run a user's script, not the kit's trainer; False without a spec.json."""
    try:
        return not Spec.read(run_dir.spec).launch.is_trainer
    except FileNotFoundError:
        return False
