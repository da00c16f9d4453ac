"""Which repository and script a run freezes, and what of the repository it does not freeze."""

import contextlib
import itertools
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from ... import installation, records
from ...console import print_line
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


def warn_of_missing(run_dir: RunDir) -> None:
    """Print what the script of a new run may read and the run has no copy of."""
    inputs = [os.path.normpath(each) for each in Spec.read(run_dir.spec).launch.inputs]
    known, runs_root = records.read(Provenance, run_dir.provenance), run_dir.path.parent.parent
    repository = Path((known and known.repository) or ".")
    with contextlib.suppress(FileNotFoundError):  # without git all is copied
        options = ("-z", "--others", "--ignored", "--exclude-standard", "--directory")
        listed = ask_git(repository, "ls-files", *options).stdout.split("\0")
        names = (each for each in listed if each and _may_be_read(repository, each, runs_root))
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
