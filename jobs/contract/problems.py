"""One mistake of a user: which key, what is wrong, how to fix it; and all of them in one exception.

Standard library only.
"""

import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..base.console import printable
from ..base.errors import UserError

# The way to a key: names of mappings and positions in lists.
KeyPath = tuple[str | int, ...]
MAX_SHOWN = 60
# Characters that neither sbatch's arguments nor a terminal may get: control characters, line
# separators, lone surrogates.
CONTROL = "\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029\\ud800-\\udfff"


@dataclass(frozen=True)
class Place:
    """A place in the user's input: `configs/x.yaml:7` or `override slurm.nodes=2`.

    order: problems are listed in this order; lines of the file first, then overrides.
    """

    where: str = ""
    order: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Problem:
    """What is wrong with a key, and how to fix it.

    path: the key; empty for the input as a whole.
    also: the keys that it was compared with.
    place: empty until the key is looked up in the user's input, or if there is no such input.
    is_error: False for a warning, which does not keep the run from starting.
    frames: the last frames of the user's own files, where their code raised it.
    """

    path: KeyPath
    what: str
    hint: str = ""
    also: tuple[KeyPath, ...] = ()
    place: Place = Place()
    is_error: bool = True
    frames: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = f"{self.place.where}: " if self.place.where else ""
        key = f"{dotted(self.path)}: " if self.path else ""
        hint = [f"  hint: {self.hint}"] if self.hint else []
        lines = [f"{where}{key}{self.what}", *(f"  {frame}" for frame in self.frames), *hint]
        return "\n".join(map(printable, lines))


class SpecError(UserError):
    """A spec with mistakes. Its text is the list of all problems, in the order of the input."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        ordered = sorted(problems, key=lambda problem: problem.place.order)
        self.problems: Sequence[Problem] = tuple(ordered)
        super().__init__("\n".join(str(problem) for problem in ordered))


def dotted(path: KeyPath) -> str:
    """Return `slurm.sbatch_args.mail-type` or `setup[1]`; other parts than words are in quotes."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            is_plain = re.fullmatch(r"(?a:[^\W\d][\w-]{0,59})", part)
            text += ("." if text else "") + (part if is_plain else format_value(part))
    return text


def format_value(value: Any, written: str | None = None) -> str:
    """Return a user's value for a message: shortened JSON; a number as in the file (`written`)."""
    is_number = written is not None and not isinstance(value, str)
    text = str(written) if is_number else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def expand_path(written: str) -> str:
    """Return a path with ~ and $VARIABLES expanded.

    Raises: ValueError for a `$` that stays: a variable that is not set, or what only a shell does.
    """
    path = os.path.expandvars(os.path.expanduser(written))
    if "$" in path:
        raise ValueError(f"{format_value(written)} has a variable in it that is not set")
    return path
