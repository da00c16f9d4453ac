"""The working directory of a user's own script or module.

The ranks start in RUN_DIR/work, a copy of the frozen code that each run has for itself: the script
finds what it finds in its repository, by the same relative paths, and writes to neither.
"""

import contextlib
import filecmp
import itertools
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ...base import files
from ...base.console import print_line
from ...base.errors import UserError
from ...contract import records
from ...contract.records.frozen import Provenance
from ...contract.rundir import RunDir
from ...contract.spec import Spec
from ...runs import code_snapshot
from ...runs.code_snapshot import digest_in
from .code import check_frozen, check_inputs

MAX_ASKED = 10_000  # names: a folder with very many files must not delay a start
MAX_COPIED_BYTES = 2**20  # of a larger file the working directory has a link to the frozen one


@dataclass(frozen=True)
class Work:
    """work.json: the name of the frozen code of which the working directory is a copy."""

    code: str | None = None


def ask_for_all(folder: Path, known: Path | None = None) -> None:
    """Make this host's client ask the server about each name in a folder, and below.

    A name in `known`, a folder with a part of the same names, is left out. Raises: OSError.
    """
    left, asked = [(folder, known)], 0
    while left:
        place, other = left.pop()
        old = {*files.names_in(other)} if other is not None else set()
        for name in files.names_in(place):
            if asked >= MAX_ASKED:
                return
            path, is_old = place / name, name in old
            if not is_old:
                asked += 1
                files.ask_again(path)
            if path.is_dir() and not path.is_symlink():
                left.append((path, other / name if other is not None and is_old else None))


def follow_code(run_dir: RunDir) -> None:
    """Make the working directory a writable copy of the run's code, with links to launch.inputs.

    What the script wrote stays. A resume may have changed the code, a scratch purge have deleted
    files, or a kill have ended the command that filled the directory. Raises: UserError.
    """
    launch = Spec.read(run_dir.spec).launch
    known = records.read(Provenance, run_dir.provenance)
    if known is None or known.repository is None:
        return
    check_frozen(launch, run_dir)
    check_inputs(launch, Path(known.repository))
    record, code = run_dir.path / "work.json", run_dir.code.resolve()
    before = records.read(Work, record)
    if before is None or digest_in(before.code or "") != digest_in(code.name):
        if before is not None and before.code and code_snapshot.NAME.fullmatch(before.code):
            _leave(run_dir.work, code.with_name(before.code), code)
        records.write(record, Work(code.name))
    run_dir.work.mkdir(exist_ok=True)
    _fill(run_dir.work, code)
    _link(run_dir.work, launch.inputs, Path(known.repository))


def _leave(work: Path, old: Path, new: Path) -> None:
    """Remove the files of the old code that the new code does not have, or has changed.

    With them go the folders that are empty then. A file to which the script has written is renamed,
    and the new name is printed.
    """
    kept = code_snapshot.files_of(new)
    # A scratch purge may have deleted the list of the old files.
    for name in code_snapshot.files_of(old) if (old / code_snapshot.LIST).is_file() else kept:
        before, target = old / name, work / name
        if not os.path.lexists(target) or (name in kept and _is_same(before, kept[name])):
            continue
        if target.is_symlink() or _is_same(before, target):
            target.unlink()
            with contextlib.suppress(OSError):  # one is not empty
                for folder in itertools.takewhile(work.__ne__, target.parents):
                    folder.rmdir()
        else:
            own = target.with_name(f"{target.name}.before-resume")
            target.rename(own)
            print_line(f"{target} has new content from the code; the script's own is now {own}")


def _fill(work: Path, code: Path) -> None:
    for name, source in code_snapshot.files_of(code).items():
        target = work / name
        if target.exists():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)  # it leads to a copy of the code that was deleted
        if source.is_symlink():
            target.symlink_to(os.readlink(source))
        elif source.stat().st_size > MAX_COPIED_BYTES:
            target.symlink_to(os.path.relpath(source, target.parent))
        else:
            with files.replacing(target) as temporary:  # a kill leaves no half file
                shutil.copyfile(source, temporary)
                temporary.chmod(source.stat().st_mode | 0o200)


def _link(work: Path, inputs: Iterable[str], repository: Path) -> None:
    for name in sorted(inputs):  # a folder before what it has
        target, source = work / name, repository / name
        if target.exists() and target.samefile(source):
            continue
        if not os.path.lexists(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(source)
        elif target.is_dir() and not target.is_symlink():  # a file: the script has replaced it
            what = f"launch.inputs: {name}: the run has files of its own there: {target}"
            hint = "move away what the script wrote; where they are frozen, submit a new run"
            raise UserError(what, hint)


def _is_same(old: Path, new: Path) -> bool:
    if old.is_symlink() or new.is_symlink():
        return old.is_symlink() and new.is_symlink() and os.readlink(old) == os.readlink(new)
    return old.is_file() and filecmp.cmp(old, new, shallow=False)
