"""The working directory of a user's own script or module (launch.script, launch.module).

The ranks start in RUN_DIR/work, a copy of the frozen code that each run has for itself: the script
finds what it finds in its repository, by the same relative paths, and writes to neither.
"""

from __future__ import annotations

import contextlib
import filecmp
import itertools
import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from .. import installation, records
from ..console import print_line
from ..errors import UserError
from ..records.frozen import Provenance
from ..rundir import RunDir, replacing
from ..spec import Launch, Spec
from . import code_snapshot
from .code_snapshot import MAX_SHOWN

MAX_COPIED_BYTES = 2**20  # of a larger file the working directory has a link to the frozen one


def locate(spec: Spec, repository: Path) -> tuple[Spec, Path]:
    """Return the spec with launch.script relative to its repository, and the repository to freeze.

    A script outside of `repository` has one of its own: its git repository, or its folder.
    Raises: UserError for a script that does not exist.
    """
    if (written := spec.launch.script) is not None:
        # Links are resolved, as Python does for sys.path[0]: the code is where the link leads to.
        path = (repository.resolve() / os.path.expanduser(written)).resolve()
        if not path.is_relative_to(repository.resolve()):
            repository = installation.top_of(path.parent) or path.parent
            code_snapshot.refuse_home(repository)
        if not path.is_file():
            raise UserError(
                f"launch.script: {written} does not exist\n"
                f"  hint: give its path relative to {repository}"
            )
        script = str(path.relative_to(repository.resolve()))
        spec = replace(spec, launch=replace(spec.launch, script=script))
    return spec, repository


def check_inputs(launch: Launch, repository: Path) -> None:
    """Raises UserError for a path of launch.inputs that does not exist."""
    for name in launch.inputs:
        if not (repository / name).exists():
            raise UserError(
                f"launch.inputs: {repository / name} does not exist\n"
                f"  hint: give a path relative to {repository}"
            )


def check_frozen(launch: Launch, run_dir: RunDir) -> None:
    """Raises UserError for a launch.script that the frozen code of the run does not have.

    Or that is written for a shell: each rank would end with an error of Python's grammar.
    """
    if launch.script is None:
        return
    frozen = run_dir.code / launch.script
    if not frozen.is_file():
        raise UserError(
            f"launch.script: {launch.script} is not in the frozen code\n"
            "  hint: git ignores it (git add -f), or it is newer than this run: submit a new run"
        )
    with frozen.open("rb") as file:
        first = file.readline(200)
    if frozen.suffix in (".sh", ".bash") or re.match(rb"#!.*\b(?:ba|da|z|k)?sh\b", first):
        raise UserError(
            f"launch.script: {launch.script} is a shell script, and Python runs launch.script\n"
            "  hint: name a Python file that starts it, such as one with\n"
            "    import subprocess, sys; "
            f"sys.exit(subprocess.call(['bash', '{launch.script}', *sys.argv[1:]]))"
        )


def remove_changed(work: Path, old: Mapping[str, Path], new: Mapping[str, Path]) -> None:
    """Remove the files of the working directory that the new code does not have, or has changed.

    With them go the folders that are empty then. A file to which the script has written is renamed,
    and the new name is printed.
    """
    for name, before in old.items():
        target = work / name
        if not os.path.lexists(target) or (name in new and _is_same(before, new[name])):
            continue
        if target.is_symlink() or _is_same(before, target):
            target.unlink()
            with contextlib.suppress(OSError):  # one is not empty
                for folder in itertools.takewhile(work.__ne__, target.parents):
                    folder.rmdir()
        else:
            kept = target.with_name(f"{target.name}.before-resume")
            target.rename(kept)
            print_line(f"{target} was written by the script, and the code has another one: {kept}")


def leave_code(run_dir: RunDir, new: Path) -> None:
    """Remove from the working directory what the run's code has, and the new code has not."""
    if Spec.read(run_dir.spec).launch.is_trainer:
        return
    old = run_dir.code.resolve()
    # A scratch purge may have deleted the list of the old files.
    has_list = (old / code_snapshot.LIST).is_file()
    files = code_snapshot.files_of(new)
    names = code_snapshot.files_of(old) if has_list else files
    remove_changed(run_dir.work, {name: old / name for name in names}, files)


def fill_work(run_dir: RunDir, launch: Launch, repository: Path) -> None:
    """Make the working directory a writable copy of the frozen code, with links to launch.inputs.

    What it has already stays. Raises: UserError.
    """
    check_inputs(launch, repository)
    for name, source in code_snapshot.files_of(run_dir.code).items():
        target = run_dir.work / name
        if os.path.lexists(target):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            target.symlink_to(os.readlink(source))
        elif source.stat().st_size > MAX_COPIED_BYTES:
            target.symlink_to(os.path.relpath(source, target.parent))
        else:
            with replacing(target) as temporary:  # a kill leaves no half file
                shutil.copyfile(source, temporary)
                temporary.chmod(source.stat().st_mode | 0o200)
    for name in sorted(launch.inputs):  # a folder before what it has
        target, source = run_dir.work / name, repository / name
        if target.exists() and target.samefile(source):
            continue
        if not os.path.lexists(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(source)
        elif target.is_dir() and not target.is_symlink():  # a file: the script has replaced it
            raise UserError(
                f"launch.inputs: {name}: the run has files of its own there: {target}\n"
                "  hint: move away what the script wrote; where they are frozen, submit a new run"
            )


def mend_work(run_dir: RunDir, launch: Launch) -> None:
    """Put what is missing into the working directory of a user's script.

    A scratch purge may have deleted it, or a kill have ended the command that fills it.
    """
    known = None if launch.is_trainer else records.read(Provenance, run_dir.provenance)
    if known is not None and known.repository is not None:
        fill_work(run_dir, launch, Path(known.repository))


def _is_same(old: Path, new: Path) -> bool:
    if old.is_symlink() or new.is_symlink():
        return old.is_symlink() and new.is_symlink() and os.readlink(old) == os.readlink(new)
    return old.is_file() and filecmp.cmp(old, new, shallow=False)


def warn_of_missing(launch: Launch, repository: Path, runs_root: Path) -> None:
    """Print what a script may read and the run has no copy of."""
    with contextlib.suppress(FileNotFoundError):  # without git all is copied
        options = ("-z", "--others", "--ignored", "--exclude-standard", "--directory")
        listed = code_snapshot.ask_git(repository, "ls-files", *options).stdout.split("\0")
        names = (each for each in listed if each and _may_be_read(repository, each, runs_root))
        inputs = [os.path.normpath(each) for each in launch.inputs]
        left = [*itertools.islice((x for x in names if not _is_linked(x, inputs)), MAX_SHOWN + 1)]
        if left:
            shown = ", ".join(left[:MAX_SHOWN]) + ", ..." * (len(left) > MAX_SHOWN)
            print_line(
                f"git ignores {shown}, so the run has no copy: "
                "what the script reads there has to be named in launch.inputs"
            )
    if line := editable_line():
        print_line(line)


def _may_be_read(repository: Path, name: str, runs_root: Path) -> bool:
    """Return whether an ignored path may be data: not an environment, bytecode, or Slurm's log."""
    path = repository / name
    is_made = path.name.startswith((".", "__", "slurm-")) or path.suffix in (".pyc", ".egg-info")
    is_environment = name.endswith("/") and (path / "pyvenv.cfg").exists()
    return not (is_made or is_environment or path == runs_root)


def _is_linked(name: str, inputs: Sequence[str]) -> bool:
    """Return whether an ignored path, or a part of it, is one of launch.inputs."""
    below, path = code_snapshot.is_below, name.rstrip("/")
    return below(path, inputs) or any(below(each, (path,)) for each in inputs)


def editable_line() -> str | None:
    """Return a warning about packages of `pip install -e`, whose code is not frozen.

    Source: PEP 610, direct_url.json.
    """
    found, pattern = [], "*.dist-info/direct_url.json"
    for file in (each for path in sys.path for each in Path(path).glob(pattern)):
        known = json.loads(file.read_text("utf-8"))
        folder = Path(url2pathname(urlsplit(known.get("url", "")).path))
        if known.get("dir_info", {}).get("editable") and folder != installation.ROOT:
            found.append(f"{file.parent.name.partition('-')[0]} ({folder})")
    if not found:
        return None
    return f"warning: not frozen, because pip install -e leads there: {', '.join(sorted(found))}"
