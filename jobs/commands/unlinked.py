"""What no run of a runs root leads to any more: copies of code, and links whose target is gone."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from .. import records, shared_files
from ..errors import UserError
from ..records.frozen import Provenance
from ..rundir import RunDir
from ..shared_files import files_in
from .leftovers import Leftover

MIN_AGE_S = 3600.0  # a submit may be using it before its run directory exists
CODE = ".code"
DELETED = ".deleted-"  # what a killed clean has renamed and not yet deleted
_COPY = re.compile("[0-9a-f]{64}")
# Run directories lie two levels below the root; a user may have moved some deeper.
_MAX_DEPTH = 6


def find(root: Path, older_than_s: float, gone: Sequence[RunDir], is_idle: bool) -> list[Leftover]:
    """Return what no run of the root leads to.

    gone: runs that are to be deleted, which need nothing. is_idle: no run of the root may still
    run. Then also code is left over that a submit has replaced because it was damaged.
    """
    leftovers = list(_dangling(root, gone))
    unused = f"code that no run of {root} has"
    linked = linked_code(root, gone)
    for path in files_in(root / CODE, "*"):
        shared_files.ask_again(path)  # a submit on another host may be taking it
        age_s = time.time() - path.lstat().st_mtime
        if path.lstat().st_uid != os.geteuid() or age_s < max(MIN_AGE_S, older_than_s):
            continue
        if path.name.startswith((DELETED, ".copy-")) or (
            path.name.startswith(".broken-") and is_idle
        ):
            leftovers.append(Leftover(path, "an unfinished or damaged copy of code"))
        elif _COPY.fullmatch(path.name) and linked is not None and path.name not in linked:
            leftovers.append(Leftover(path, unused))
    leftovers += [
        Leftover(path, "what a killed clean had begun to delete")
        for path in files_in(root, f"{DELETED}*")
    ]
    return leftovers


def linked_code(root: Path, gone: Sequence[RunDir] = ()) -> set[str] | None:
    """Return the names of the code copies that the root's runs have or had, runs of sweeps too.

    None where a run cannot be read: then every copy may be in use.
    """
    names: set[str] = set()
    without = {run_dir.path for run_dir in gone}
    try:
        for run_dir in _run_dirs(root):
            if run_dir.path in without:
                continue
            for link in (run_dir.code, run_dir.kit, run_dir.script_code):
                if link.is_symlink():
                    names.add(Path(os.readlink(link)).name)
            known = records.read(Provenance, run_dir.provenance)
            for snapshot in () if known is None else known.snapshots:
                names |= {name for name in snapshot.copies if name is not None}
    except (OSError, UserError):
        return None
    return names


def points_of_sweeps(root: Path) -> set[Path]:
    """Return the run directories of all sweep points of a root, also of sweeps that it links to.

    From the links, not from sweep.json, which may be damaged.
    """
    sweeps = [each for folder in files_in(root, "[!.]*") for each in files_in(folder, "sweep-*")]
    return {link.resolve() for sweep in sweeps for link in files_in(sweep / "points", "*")}


def _run_dirs(root: Path) -> Iterator[RunDir]:
    """Yield the run directories below a root, outside of hidden folders. Raises: OSError."""

    def fail(error: OSError) -> None:
        raise error

    shared_files.renew_mount(root)
    shared_files.ask_again(root)
    for folder, folders, names in os.walk(root, onerror=fail):
        is_run = _is_run(names, folder)
        if is_run:
            yield RunDir(Path(folder))
        if is_run or len(Path(folder).relative_to(root).parts) >= _MAX_DEPTH:
            folders.clear()
        folders[:] = [name for name in folders if name[0] != "."]
        for name in folders:  # os.walk lists them next
            shared_files.ask_again(Path(folder) / name)


def _is_run(names: Sequence[str], folder: str) -> bool:
    return "spec.json" in names or os.path.islink(os.path.join(folder, "code"))


def _dangling(root: Path, gone: Sequence[RunDir]) -> Iterator[Leftover]:
    """Yield links by job id, and links to runs, whose run is gone."""
    without = {run_dir.path for run_dir in gone}
    for folder in [root / ".jobs", *files_in(root, "[!.]*")]:
        for link in filter(Path.is_symlink, files_in(folder, "*")):
            if link.resolve() in without or not shared_files.exists(link.resolve()):
                yield Leftover(link, "a link to a run that is gone")
