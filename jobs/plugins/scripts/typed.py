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

_HANDLES_TERM = re.compile(rb"kit_stop|slurm_job_kit\.trainer\.plugins\.integrations")


def spec_text(words: Sequence[str], command: str) -> str:
    """Return the YAML of a spec that runs `python SCRIPT WORDS` or `python -m MODULE WORDS`.

    command: of the kit, for hints. Raises: UserError for words that are no such command.
    """
    if not words:
        raise UserError("nothing stands behind --", f"as in {_typed(command, 'python train.py')}")
    program, *rest = words
    is_module = rest[:1] == ["-m"] and rest[1:2] not in ([], [""])
    if not _is_python(program) or (is_module and is_launcher(rest[1])):
        raise _refused(words, command)
    if not is_module and (not rest or rest[0].startswith("-")):
        what = f"{shlex.join(words[:2])}: the kit starts python SCRIPT or python -m MODULE"
        raise UserError(what, f"as in {_typed(command, 'python train.py')}")
    top = code_snapshot.repository().resolve()
    if is_module:
        start, args, path = ["-m", rest[1]], rest[2:], top / rest[1].replace(".", "/")
        launch, texts = {"module": rest[1]}, [path.with_suffix(".py"), path / "__main__.py"]
        name = rest[1].removesuffix(".__main__")
    else:
        path, args = Path(rest[0]).expanduser().resolve(), rest[1:]
        is_inside = path.is_relative_to(top)
        start, texts = [str(path.relative_to(top) if is_inside else path)], [path]
        launch, name = {"script": start[0]}, path.stem
    if Path.cwd().resolve() != top and not Path(start[0]).is_absolute():
        what = f"the kit starts programs at the top of their repository, {top}, not in {Path.cwd()}"
        line = _typed(command, shlex.join(["python", *start, *args]))
        raise UserError(what, f"cd {shlex.quote(str(top))} && {line}")
    if any(_HANDLES_TERM.search(text.read_bytes()) for text in texts if text.is_file()):
        launch["stop_signal"] = "TERM"
    known = launch | {"args": args} | _interpreter(program)
    lines = (f"  {key}: {json.dumps(value)}\n" for key, value in known.items() if value)
    name = re.sub(r"[^\w-]+", "-", name).strip("-_") or "run"
    return f"name: {json.dumps(name)}\nlaunch:\n{''.join(lines)}"


def _is_python(program: str) -> bool:
    return re.fullmatch(r"python(\d[\w.]*)?", Path(program).name) is not None


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
        key = words[0] if "." in words[0].partition("=")[0] else f"launch.env.{words[0]}"
        return UserError(f"{words[0]} is no program", f"write {key} before --")
    what = f"{words[2] if _is_python(words[0]) else words[0]}: the kit starts the ranks itself"
    modules = [n for n, word in enumerate(words[:-1]) if word == "-m"]
    starts = [n for n in modules if not is_launcher(words[n + 1])]
    ends = zip(words, words[1:], strict=False)  # a.py of `--config a.py` is no script
    starts += [n for n, (x, word) in enumerate(ends, 1) if word.endswith(".py") and x[:2] != "--"]
    line = shlex.join(["python", *(words[min(starts) :] if starts else ["train.py"])])
    hint = f"{'' if starts else 'as in '}{_typed(command, line)}"
    if not starts and re.search(r"(^|/)(ba)?sh$|\.sh$", words[0]):
        hint = "name the Python file that it starts; its other lines go into setup"
    return UserError(what, hint)


def _typed(command: str, line: str) -> str:
    """Return how the user types a command of the kit with one behind `--`."""
    words = f"make {command} CMD={shlex.quote(line)}"
    return words if installation.IS_BY_MAKE or installation.TO_MAKE else f"kit {command} -- {line}"
