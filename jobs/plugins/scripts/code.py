"""Which repository and script a run freezes."""

import contextlib
import os
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from ...base import installation
from ...base.errors import UserError
from ...config.keys import nearest
from ...contract.problems import Problem, SpecError, format_value
from ...contract.rundir import RunDir
from ...contract.spec import Launch, Spec
from ...runs import code_snapshot


def locate(spec: Spec, repository: Path) -> tuple[Spec, Path]:
    """Return the spec with launch.script relative to its repository, and the repository to freeze.

    A script outside of `repository` has one of its own: its git repository, or its folder.
    Raises: UserError for a script that does not exist.
    """
    if (written := spec.launch.script) is not None:
        # Links are resolved, as Python does for sys.path[0]: the code is where the link leads to.
        path = (repository.resolve() / os.path.expanduser(written)).resolve()
        is_inside = path.is_relative_to(repository.resolve())
        if not path.is_file():
            what = "is a folder" if path.is_dir() else "does not exist"
            near = nearest(path.name, [each.name for each in path.parent.glob("*.py")])
            hint = f"did you mean {near}? " if near else ""
            hint += f"give the path of a file relative to {repository}"
            problem = Problem(("launch", "script"), f"{format_value(written)} {what}", hint)
            raise SpecError([problem])
        if not is_inside:
            repository = installation.top_of(path.parent) or path.parent
            code_snapshot.refuse_home(repository)
        script = str(path.relative_to(repository.resolve()))
        spec = replace(spec, launch=replace(spec.launch, script=script))
    return spec, repository


def check_inputs(launch: Launch, repository: Path) -> None:
    for name in launch.inputs:
        if not (repository / name).exists():
            what = f"launch.inputs: {repository / name} does not exist"
            raise UserError(what, f"give a path relative to {repository}")


def check_frozen(launch: Launch, run_dir: RunDir) -> None:
    """Raises UserError for a launch.script that is not frozen, or is written for a shell."""
    if launch.script is None:
        return
    frozen = run_dir.code / launch.script
    if not frozen.is_file():
        hint = "git ignores it (git add -f), or it is newer than this run: submit a new run"
        raise UserError(f"launch.script: {launch.script} is not in the frozen code", hint)
    if frozen.suffix in (".sh", ".bash"):
        what = f"launch.script: {launch.script} is a shell script, and Python runs launch.script"
        raise UserError(what, "name the Python file that it starts; its other lines go into setup")


def texts_of(launch: Launch, code: Path) -> dict[Path, str]:
    """Return the texts of the script, of the files that it imports, and of its configs."""
    script = code / (launch.script or f"{str(launch.module).replace('.', '/')}.py")
    if launch.module and not script.is_file():
        script = script.with_suffix("") / "__main__.py"
    text = "".join(_texts([script]).values())
    imports = re.findall(r"(?m)^\s*(?:from +([\w.]+) +)?import +\(?([\w., ]*)", text)
    names = {f"{top}.{x}".strip(".") for top, own in imports for x in ("", *re.split("[, ]", own))}
    paths = (name.replace(".", "/") for name in sorted(names - {""}))
    files = [f"{path}{end}" for path in paths for end in (".py", "/__init__.py")]
    words = (word.rpartition("=")[2] for word in launch.args)
    files += [x for x in words if re.fullmatch(r"[^/].*\.(ya?ml|json|toml)", x)]
    tops = [top for top in script.parents if top.is_relative_to(code)]
    return _texts([script, *(top / x for x in files for top in tops if "kit_stop" not in x)])


def _texts(paths: Iterable[Path]) -> dict[Path, str]:
    """Return the texts of files that can be read, without comments and texts in three quotes."""
    texts = {}
    for path in paths:
        with contextlib.suppress(OSError, ValueError):
            text, other = path.read_text("utf-8"), r"(\"{3}|'{3})[\s\S]*?\1|#.*"
            texts[path] = re.sub(other, lambda found: "\n" * found[0].count("\n"), text)
    return texts
