"""How the frozen code of a run differs from the checkout, and the change from one to the other."""

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from ... import hooks, records
from ...errors import UserError
from ...records.frozen import Provenance, Revision
from ...rundir import RunDir
from ...runs import code_snapshot, revision
from ...runs.freeze import provenance
from ...runs.git import ask_git
from ...spec import Spec
from . import spec_changes

MAX_LINES = 40  # of changed files that are shown


@dataclass(frozen=True)
class NewCode:
    """Fresh copies of the checkout and of this kit."""

    repository: Path
    code: Path
    kit: Path


def repository_of(run_dir: RunDir) -> Path:
    """Return the repository from which `resume --code` takes the code of a run.

    The working directory's repository if the run lies in it; else the one that was submitted.

    Raises: UserError if that is gone.
    """
    known = records.read(Provenance, run_dir.provenance)
    if known is not None and known.repository is not None and Path(known.repository).is_dir():
        return Path(known.repository)
    here = code_snapshot.repository()
    if known is None or run_dir.path.is_relative_to(here):
        return here
    raise UserError(
        f"--code: {known.repository}, the repository that was submitted, is gone\n"
        "  hint: restore it; or, if it was moved with its runs, repeat the command in it"
    )


def prepare(run_dir: RunDir, spec: Spec, repository: Path) -> NewCode:
    """Copy the checkout, as a submit does; nothing of the run changes.

    Raises: UserError, OSError.
    """
    runs_root, mode = run_dir.path.parent.parent, int(spec.dir_mode, 8)
    _, repository, left_out = hooks.freeze(spec, repository)
    code = code_snapshot.take(repository, runs_root, mode, left_out)
    return NewCode(repository, code, code_snapshot.take_kit(runs_root, mode))


def summary(run_dir: RunDir, new: NewCode) -> list[str]:
    """Return a line for each file in which the new code differs from that of the run, by git."""
    lines = []
    for link, fresh in ((run_dir.code, new.code), (run_dir.kit, new.kit)):
        if code_snapshot.digest_in(link.resolve().name) != code_snapshot.digest_in(fresh.name):
            lines.append(f"git diff --no-index {link.resolve()} {fresh}")
            lines += _stat(link.resolve(), fresh, link.name)
    return lines


def _stat(old: Path, new: Path, name: str) -> list[str]:
    if not old.is_dir():
        return [f" {old} is gone: nothing to compare"]
    with tempfile.TemporaryDirectory() as folder:  # git prints these short names
        Path(folder, name).symlink_to(old)
        Path(folder, f"new-{name}").symlink_to(new)
        words = ("diff", "--no-index", "--stat=100", f"{name}/", f"new-{name}/")
        try:
            printed = ask_git(Path(folder), *words).stdout
        except FileNotFoundError:
            return []
    ours = ("__pycache__", code_snapshot.LIST)
    lines = [x.split() for x in printed.splitlines() if "|" in x and not any(map(x.count, ours))]
    # Not cut by git, which would count the bytecode of the old copy, and pads for its names.
    return [f" {' '.join(words)}" for words in lines[:MAX_LINES]]


def confirm(run_dir: RunDir, new: NewCode, is_confirmed: bool) -> list[str]:
    """Return what differs, for the user. Raises: UserError for a difference without a --yes."""
    lines = summary(run_dir, new)
    if lines and not is_confirmed:
        what = "resume: with other code the run may end with other results"
        raise spec_changes.unconfirmed(what, lines)
    return lines or [f"the code of {new.repository} is the same as that which the run has"]


def switch(run_dir: RunDir, new: NewCode) -> Revision:
    """Return the change that gives a run the new code."""
    known = records.read(Provenance, run_dir.provenance)
    code = code_snapshot.digest_in(new.code.name)
    now = provenance(new.repository, code, Spec.read(run_dir.spec).interpreter)
    names = ["code", "git_sha", "git_diff", "lock_sha256", "repository", "frozen"]
    updated = replace(known or now, **{name: getattr(now, name) for name in names})
    texts = {run_dir.provenance: records.text(updated)}
    folders = {run_dir.code: new.code, run_dir.kit: new.kit}
    return revision.of_files(run_dir, texts) + revision.of_links(run_dir, folders)
