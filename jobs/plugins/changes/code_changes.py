"""How the frozen code of a run differs from the checkout, and the change from one to the other."""

import os
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ... import hooks
from ...base.console import print_line
from ...base.errors import UserError
from ...contract import records
from ...contract.records.frozen import Provenance, Revision
from ...contract.rundir import RunDir
from ...contract.spec import Spec
from ...runs import code_snapshot, revision
from ...runs.freeze import provenance
from . import spec_changes


class NewCode(NamedTuple):
    """Fresh copies of the checkout and of this kit."""

    repository: Path
    code: Path
    kit: Path


def repository_of(run_dir: RunDir) -> Path:
    """Return the repository that was submitted. Raises: UserError if it is gone."""
    known = records.read(Provenance, run_dir.provenance)  # None: a scratch purge removed it
    home = Path((known and known.repository) or code_snapshot.repository())
    if not home.is_dir():
        what = f"--code: {home}, the repository that was submitted, is gone"
        raise UserError(what, f"if it was moved: ln -s NEW_FOLDER {home}")
    return home


def prepare(run_dir: RunDir, spec: Spec, repository: Path) -> NewCode:
    """Copy the checkout, and change nothing of the run. Raises: UserError, OSError."""
    runs_root, mode = run_dir.path.parent.parent, int(spec.dir_mode, 8)
    _, repository, left_out = hooks.prepare_code(spec, repository)
    code = code_snapshot.take(repository, runs_root, mode, left_out)
    return NewCode(repository, code, code_snapshot.take_kit(runs_root, mode))


def confirm(run_dir: RunDir, new: NewCode, is_confirmed: bool) -> None:
    """Print the command that shows what differs. Raises: UserError for that without a --yes."""
    lines = [
        f"git diff --no-index {old} {fresh}" if old.is_dir() else f"{old} is gone"
        for old, fresh in ((run_dir.code.resolve(), new.code), (run_dir.kit.resolve(), new.kit))
        if code_snapshot.digest_in(old.name) != code_snapshot.digest_in(fresh.name)
    ]
    what = "resume: with other code the run may end with other results"
    spec_changes.confirm(what, lines, is_confirmed)
    if not lines:
        print_line(f"the code of {new.repository} is the same as that which the run has")


def switch(run_dir: RunDir, new: NewCode) -> Revision:
    """Return the change that gives a run the new code."""
    known = records.read(Provenance, run_dir.provenance)
    code = code_snapshot.digest_in(new.code.name)
    now = provenance(new.repository, code)
    names = ["code", "git_sha", "git_diff", "repository", "frozen"]
    updated = replace(known or now, **{name: getattr(now, name) for name in names})
    texts = {run_dir.provenance: records.text(updated)}
    folders = {run_dir.code.name: new.code, run_dir.kit.name: new.kit}
    links = {name: os.path.relpath(to, run_dir.path) for name, to in folders.items()}
    return revision.of_files(run_dir, texts) + Revision(links=links)
