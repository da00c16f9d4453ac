"""Which repository and script a run freezes, and what of the repository it does not freeze."""

import contextlib
import itertools
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ... import installation, records
from ...errors import UserError
from ...records.frozen import Provenance
from ...rundir import RunDir
from ...runs import code_snapshot
from ...runs.code_snapshot import MAX_SHOWN
from ...runs.git import ask_git
from ...spec import Launch, Spec


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


def missing_of(run_dir: RunDir, launch: Launch) -> Iterator[str]:
    """Yield what the code of a new run may import or read, and the run has no copy of."""
    known = records.read(Provenance, run_dir.provenance)
    inputs = [os.path.normpath(each) for each in launch.inputs]
    repository = Path((known and known.repository) or ".")
    names = [each for each in _ignored(repository) if not _is_linked(each, inputs)]
    if modules := _modules(names, repository, run_dir.code):
        way = "added by git add -f" if launch.is_trainer else "named in launch.inputs"
        yield (
            f"git ignores {_some(modules)} in frozen packages, so the run has no copy: "
            f"what your code imports there has to be {way}"
        )
    if launch.is_trainer:
        return
    runs_root = run_dir.path.parent.parent
    others = (each for each in names if each not in modules)
    data = (each for each in others if _may_be_read(repository, each, runs_root))
    if left := [*itertools.islice(data, MAX_SHOWN + 1)]:
        yield (
            f"git ignores {_some(left)}, so the run has no copy: "
            "what the script reads there has to be named in launch.inputs"
        )
    if line := editable_line():
        yield line


def _ignored(repository: Path) -> list[str]:
    """Return what git ignores; a folder of which it knows nothing ends with a slash."""
    options = ("-z", "--others", "--ignored", "--exclude-standard", "--directory")
    with contextlib.suppress(FileNotFoundError):  # without git all is copied
        return [*filter(None, ask_git(repository, "ls-files", *options).stdout.split("\0"))]
    return []


def _modules(names: Sequence[str], repository: Path, code: Path) -> list[str]:
    """Return the modules and packages among the names that lie in a folder of frozen modules."""
    folders = {os.path.dirname(x) for x in code_snapshot.files_of(code) if x.endswith(".py")}
    inner = (x for x in names if os.path.dirname(x.rstrip("/")) in folders - {""})
    return [x for x in inner if x.endswith((".py", ".so")) or _is_package(repository / x)]


def _is_package(path: Path) -> bool:
    return (path / "__init__.py").exists()


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:MAX_SHOWN]) + ", ..." * (len(names) > MAX_SHOWN)


def _may_be_read(repository: Path, name: str, runs_root: Path) -> bool:
    """Return whether an ignored path may be data: not bytecode, or Slurm's log."""
    path = repository / name
    is_made = path.name.startswith((".", "__", "slurm-")) or path.suffix in (".pyc", ".egg-info")
    return not (is_made or path == runs_root)


def _is_linked(name: str, inputs: Sequence[str]) -> bool:
    """Return whether an ignored path, or a part of it, is one of launch.inputs."""
    below, path = code_snapshot.is_below, name.rstrip("/")
    return below(path, inputs) or any(below(each, (path,)) for each in inputs)


def editable_line() -> str | None:
    """Return a warning about packages of `pip install -e`, whose code is not frozen.

    Source: PEP 610, direct_url.json.
    """
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    found, pattern = [], "*.dist-info/direct_url.json"
    for file in (each for path in sys.path for each in Path(path).glob(pattern)):
        known = json.loads(file.read_text("utf-8"))
        folder = Path(url2pathname(urlsplit(known.get("url", "")).path))
        if known.get("dir_info", {}).get("editable") and folder != installation.ROOT:
            found.append(f"{file.parent.name.partition('-')[0]} ({folder})")
    if not found:
        return None
    return f"warning: not frozen, because pip install -e leads there: {', '.join(sorted(found))}"
