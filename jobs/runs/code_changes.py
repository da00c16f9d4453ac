"""How the frozen code of a run differs from the checkout, and the switch from one to the other."""

from __future__ import annotations

import contextlib
import difflib
import os
import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .. import records, shared_files
from ..console import quantity
from ..errors import UserError
from ..records.frozen import CodeSnapshot, Provenance
from ..rundir import RunDir, relink, write_atomic
from ..spec import Launch, Spec
from . import code_snapshot, own_script
from .code_digest import UsedCode, has_weight, name_of, used_code

MAX_LISTED = 20
MAX_DIFF_BYTES = 2**20


@dataclass(frozen=True)
class FileChange:
    """A file that two frozen codes do not have in common, with its numbers of lines.

    has_weight: results may depend on the file. added, removed: None for a file that is no text.
    """

    name: str
    kind: str  # A: added, D: deleted, M: modified
    has_weight: bool
    added: int | None = None
    removed: int | None = None


@dataclass(frozen=True)
class NewCode:
    """A fresh copy of the checkout, and its differences from the code of a run.

    kit: a copy of this kit.
    script_code: the same for a launch.script outside of the repository. live_folders: as in
    Provenance.
    """

    repository: Path
    code: Path
    kit: Path
    script_code: Path | None
    changes: tuple[FileChange, ...]
    live_folders: tuple[str, ...]
    is_first_lost: bool  # the code that the run has now is gone or damaged: nothing to compare

    @property
    def has_weight(self) -> bool:
        """Whether results may depend on the differences."""
        return self.is_first_lost or any(change.has_weight for change in self.changes)


def repository_of(run_dir: RunDir) -> Path:
    """Return the repository from which `resume --code` takes the code of a run.

    The working directory's repository if the run lies in it; else the one that was submitted.

    Raises: UserError if that is gone.
    """
    here = code_snapshot.repository()
    is_in_it = run_dir.path.is_relative_to(here)
    if is_in_it and (here / ".git").exists():
        return here
    known = records.read(Provenance, run_dir.provenance)
    if known is None or known.repository is None:
        return here
    if not Path(known.repository).is_dir():
        if is_in_it:
            return here
        raise UserError(
            f"--code: {known.repository}, the repository that was submitted, is gone\n"
            "  hint: restore it; or, if it was moved with its runs, repeat the command in it"
        )
    return Path(known.repository)


def prepare(run_dir: RunDir, spec: Spec, repository: Path) -> NewCode:
    """Copy the checkout, as a submit does, and compare the copy with the code of the run.

    Nothing of the run changes. Raises: UserError, OSError.
    """
    runs_root = run_dir.path.parent.parent
    mode, left_out = int(spec.dir_mode, 8), own_script.leftover_files(spec.launch, repository)
    code = code_snapshot.take(repository, runs_root, mode=mode, left_out=left_out)
    kit = code_snapshot.take_kit(runs_root, mode)
    script = spec.launch.script
    script_code: Path | None = None
    if script is not None and os.path.isabs(script):
        script_code, _ = own_script.freeze_outside(spec.launch, runs_root, mode)
    _check_script(spec.launch, code, script_code)
    folders = own_script.freeze_live(spec, repository, code, script_code)
    old = [run_dir.code.resolve(), run_dir.kit.resolve()]
    is_lost = not all(map(code_snapshot.is_whole, old))  # a scratch purge, perhaps
    changes = [] if is_lost else between(run_dir.code.resolve(), code, used_code(spec))
    if not is_lost:
        changes += between(run_dir.kit.resolve(), kit, UsedCode())
    if script_code is not None and shared_files.is_dir(run_dir.script_code):
        file_changes = between(run_dir.script_code.resolve(), script_code, UsedCode())
        changes += [replace(each, has_weight=True) for each in file_changes]
    return NewCode(repository, code, kit, script_code, tuple(changes), folders, is_lost)


def _check_script(launch: Launch, code: Path, script_code: Path | None) -> None:
    if launch.script is None:
        return
    file = code / launch.script if script_code is None else script_code / Path(launch.script).name
    if not file.is_file():
        raise UserError(
            f"launch.script: {launch.script} is not among the files to freeze\n"
            "  hint: bring the file back, or git ignores it (git add -f)"
        )


def between(old: Path, new: Path, used: UsedCode) -> list[FileChange]:
    """Return the differences of two frozen codes, those that results may depend on first."""
    names = [set(code_snapshot.frozen_names(code)) for code in (old, new)]
    changes = [
        _change(name, old / name, new / name, has_weight(name, used))
        for name in sorted(names[0] | names[1])
        if not _is_same(old / name, new / name)
    ]
    return sorted(changes, key=lambda change: not change.has_weight)


def _is_same(old: Path, new: Path) -> bool:
    if not (os.path.lexists(old) and os.path.lexists(new)):
        return False
    return _content(old) == _content(new) and old.lstat().st_mode == new.lstat().st_mode


def _content(path: Path) -> bytes:
    """Return what a frozen file has, or where it leads; b"" for one that does not exist."""
    if path.is_symlink():
        return os.fsencode(os.readlink(path))
    return path.read_bytes() if path.exists() else b""


def _change(name: str, old: Path, new: Path, is_heavy: bool) -> FileChange:
    exist = os.path.lexists(old), os.path.lexists(new)
    kind = {(True, False): "D", (False, True): "A"}.get(exist, "M")
    sides = [_content(old), _content(new)]
    if any(b"\0" in side or len(side) > MAX_DIFF_BYTES for side in sides):
        return FileChange(name, kind, is_heavy)
    was, now = (side.decode("utf-8", "replace").splitlines() for side in sides)
    diff = list(difflib.unified_diff(was, now, lineterm="", n=0))[2:]
    added, removed = (sum(line.startswith(sign) for line in diff) for sign in "+-")
    return FileChange(name, kind, is_heavy, added, removed)


def summary(run_dir: RunDir, new: NewCode) -> list[str]:
    """Return lines for the user: the changed files, and a command to show the whole difference."""
    if new.is_first_lost:
        old = run_dir.code.resolve()
        return [
            f"the frozen code of the run, {old}, is gone or has lost files: nothing to compare",
            f"the new code is that of {new.repository}",
        ]
    if not new.changes:
        return [f"the code of {new.repository} is the same as that which the run has"]
    count = quantity(len(new.changes), "file")
    lines = [f"the code of {new.repository} differs from that of the run in {count}:"]
    lines += [f"  {_format(change)}" for change in new.changes[:MAX_LISTED]]
    if len(new.changes) > MAX_LISTED:
        lines.append(f"  ... and {len(new.changes) - MAX_LISTED} more")
    pairs = [(run_dir.code, new.code)]
    if new.kit != run_dir.kit.resolve():
        pairs.append((run_dir.kit, new.kit))
    if new.script_code is not None:
        pairs.append((run_dir.script_code, new.script_code))
    commands = (shlex.join(["diff", "-ru", str(a.resolve()), str(b)]) for a, b in pairs)
    return [*lines, *(f"  all lines: {command}" for command in commands)]


def _format(change: FileChange) -> str:
    counts = "" if change.added is None else f"  +{change.added} -{change.removed}"
    note = "" if change.has_weight else "  (no result depends on it)"
    return f"{change.kind} {change.name}{counts}{note}"


def confirm(run_dir: RunDir, new: NewCode, is_confirmed: bool) -> None:
    """Raises: UserError for a difference on which results may depend, unless it is confirmed."""
    if new.has_weight and not is_confirmed:
        raise UserError(
            "resume: with other code the run may end with other results\n"
            + "\n".join(f"  {line}" for line in summary(run_dir, new))
            + "\n  hint: repeat it with --yes (make: YES=1)"
        )


@contextlib.contextmanager
def switch_code(run_dir: RunDir, new: NewCode, attempt: int, step: int) -> Iterator[None]:
    """Run a block in which the run has the new code; if it fails, the run gets its old code back.

    Only while no job of the run is queued or runs. attempt, step: the first attempt with the code,
    and the step of the checkpoint that it continues from.
    """
    links = {
        run_dir.kit: os.path.relpath(new.kit, run_dir.path),
        run_dir.code: os.path.relpath(new.code, run_dir.path),
    }
    if new.script_code is not None:
        links[run_dir.script_code] = os.path.relpath(new.script_code, run_dir.path)
    before = {link: os.readlink(link) for link in links if link.is_symlink()}
    has_record = shared_files.exists(run_dir.provenance)
    text = shared_files.read_text(run_dir.provenance) if has_record else None
    try:
        _record(run_dir, new, attempt, step)
        for link, target in links.items():
            relink(link, target)
        yield
    except BaseException:
        for link, was in before.items():
            relink(link, was)
        if text is not None:
            write_atomic(run_dir.provenance, text)
        raise


def _record(run_dir: RunDir, new: NewCode, attempt: int, step: int) -> None:
    """Add the new code to provenance.json; the interpreter and its packages stay."""
    from .freeze import provenance

    known = records.read(Provenance, run_dir.provenance)  # None: a scratch purge removed it
    now = provenance(new.repository, new.code.name, Spec.read(run_dir.spec).interpreter)
    script_code = None if new.script_code is None else new.script_code.name
    kit = new.kit.name
    when = round(time.time(), 3)
    added = CodeSnapshot(now.code, attempt, step, when, now.git_sha, script_code, kit)
    changed = replace(
        known or now,
        code=now.code,
        git_sha=now.git_sha,
        git_diff=now.git_diff,
        lock_sha256=now.lock_sha256,
        repository=now.repository,
        live_folders=new.live_folders,
        snapshots=_with(() if known is None else known.snapshots, added),
    )
    records.write(run_dir.provenance, changed)


def mend_record(run_dir: RunDir, attempt: int, step: int) -> None:
    """Let provenance.json name the code that the run has, which the attempt `attempt` will use.

    It names another one after a `switch_code` that was killed before it changed the links.
    """
    known = records.read(Provenance, run_dir.provenance)
    code = name_of(run_dir.code)
    if known is None or code is None or not known.snapshots:
        return
    shas = [each.git_sha for each in known.snapshots if each.code == code]
    sha = shas[-1] if shas else None
    added = CodeSnapshot(
        code,
        attempt,
        step,
        round(time.time(), 3),
        sha,
        name_of(run_dir.script_code),
        name_of(run_dir.kit),
    )
    if known.snapshots[-1].copies == added.copies:
        return
    diff = known.git_diff if known.code == code else None
    snapshots = _with(known.snapshots, added)
    mended = replace(known, code=code, git_sha=sha, git_diff=diff, snapshots=snapshots)
    records.write(run_dir.provenance, mended)


def _with(snapshots: Sequence[CodeSnapshot], added: CodeSnapshot) -> tuple[CodeSnapshot, ...]:
    """Return the codes of the attempts before `added`, then `added` unless it is the last of these.

    A code whose first attempt never began is left out: it did no step.
    """
    used = tuple(each for each in snapshots if each.attempt < added.attempt)
    if used and used[-1].copies == added.copies:
        return used
    return (*used, added)
