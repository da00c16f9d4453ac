"""The command that a user types behind `--`, as the text of a spec."""

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from ...base import installation
from ...base.errors import UserError
from ...runs import code_snapshot
from .check import is_launcher


def spec_text(words: Sequence[str], command: str) -> str:
    """Return the YAML of a spec that runs `python SCRIPT WORDS` or `python -m MODULE WORDS`.

    command: of the kit, for hints. Raises: UserError for words that are no such command.
    """
    if not words:
        raise UserError("nothing stands behind --", f"as in {_typed(command, 'python train.py')}")
    program, *rest = words
    is_module = rest[:1] == ["-m"] and len(rest) > 1
    if not _is_python(program) or (is_module and is_launcher(rest[1])):
        raise _refused(words, command)
    if is_module:
        launch, name = {"module": rest[1], "args": rest[2:]}, rest[1].removesuffix(".__main__")
    elif rest and not rest[0].startswith("-"):
        launch, name = {"script": _from_top(rest, command), "args": rest[1:]}, Path(rest[0]).stem
    else:
        what = f"{shlex.join(words[:2])}: the kit starts python SCRIPT or python -m MODULE"
        raise UserError(what, "leave out other options of python")
    launch |= _stops(Path(rest[0])) | _interpreter(program)
    lines = (f"  {key}: {json.dumps(value)}\n" for key, value in launch.items() if value)
    name = re.sub(r"[^\w-]+", "-", name).strip("-_") or "run"
    return f"name: {json.dumps(name)}\nlaunch:\n{''.join(lines)}"


def _is_python(program: str) -> bool:
    return re.fullmatch(r"python(\d[\w.]*)?", Path(program).name) is not None


def _from_top(rest: Sequence[str], command: str) -> str:
    """Return the path of a script from the top of the repository. Raises: UserError."""
    here, top, path = Path.cwd(), code_snapshot.repository(), Path(rest[0]).expanduser().resolve()
    if not path.is_relative_to(top.resolve()):
        return str(path)
    script = str(path.relative_to(top.resolve()))
    if here.resolve() != top.resolve():
        line = _typed(command, shlex.join(["python", script, *rest[1:]]))
        what = f"the kit starts a script at the top of its repository, {top}, not in {here}"
        raise UserError(what, f"cd {shlex.quote(str(top))} && {line}")
    return script


def _stops(script: Path) -> dict[str, str]:
    """Return the signal of a script that has kit_stop.py, which handles it."""
    try:
        return {"stop_signal": "TERM"} if b"kit_stop" in script.read_bytes() else {}
    except OSError:  # a module, or no file: the check of the spec says so
        return {}


def _interpreter(program: str) -> dict[str, str]:
    """Return launch.python for an interpreter other than `python`, which is found at the submit."""
    if program in ("python", "python3", sys.executable):
        return {}
    if (found := shutil.which(program)) is None:
        raise UserError(f"{program}: command not found")
    return {"python": os.path.abspath(found)}


def _refused(words: Sequence[str], command: str) -> UserError:
    """Return the error for a program that is not python, with the line to type."""
    if "=" in words[0]:
        return UserError(f"{words[0]} is no program", f"write launch.env.{words[0]} before --")
    what = f"{words[2] if _is_python(words[0]) else words[0]}: the kit starts the ranks itself"
    modules = [n for n, word in enumerate(words[:-1]) if word == "-m"]
    starts = [n for n in modules if not is_launcher(words[n + 1])]
    starts += [n for n, word in enumerate(words) if word.endswith(".py")]
    line = shlex.join(["python", *(words[min(starts) :] if starts else ["train.py"])])
    hint = f"{'' if starts else 'as in '}{_typed(command, line)}"
    if not starts and re.search(r"(^|/)(ba)?sh$|\.sh$", words[0]):
        hint = "name the Python file that it starts; its other lines go into setup"
    return UserError(what, hint)


def _typed(command: str, line: str) -> str:
    """Return how the user types a command of the kit with one behind `--`."""
    by_make = f"make {command} CMD={shlex.quote(line)}"
    return by_make if installation.IS_BY_MAKE else f"kit {command} -- {line}"
