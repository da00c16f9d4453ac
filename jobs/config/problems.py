"""What a user did wrong: where, what, and how to fix it; all of it in one exception."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.errors import UserError

Path = tuple[str | int, ...]
MAX_SHOWN = 60
# What no argument of sbatch and no terminal may get: controls, line separators, lone surrogates.
CONTROL = "\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029\\ud800-\\udfff"


@dataclass(frozen=True)
class Place:
    """A spot in the user's input: `configs/x.yaml:7` or `override slurm.nodes=2`."""

    where: str
    order: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Problem:
    """One mistake. `path` is the key it is about, empty for the input as a whole."""

    place: Place
    path: Path
    what: str
    hint: str = ""

    def __str__(self) -> str:
        key = f"{dotted(self.path)}: " if self.path else ""
        hint = f"\n  hint: {printable(self.hint)}" if self.hint else ""
        return printable(f"{self.place.where}: {key}{self.what}") + hint


class SpecError(UserError):
    """A spec that cannot be used. Its text is the whole list of problems, in file order."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        ordered = sorted(problems, key=lambda problem: problem.place.order)
        self.problems: Sequence[Problem] = tuple(ordered)
        super().__init__("\n".join(str(problem) for problem in ordered))


def dotted(path: Path) -> str:
    """`slurm.sbatch_args.mail-type` or `setup[1]`; a part that is no plain word is quoted."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + (part if is_word(part) else shown(part))
    return text


def is_word(text: str) -> bool:
    """Whether a key can stand in a dotted path as it is."""
    return text.isascii() and text.replace("-", "_").isidentifier() and len(text) <= MAX_SHOWN


def shown(value: Any, written: str | None = None) -> str:
    """A user's value for a message: JSON, or a number as it was written; shortened."""
    is_number = written is not None and not isinstance(value, str)
    text = str(written) if is_number else printable(json.dumps(value, ensure_ascii=False))
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def printable(text: str) -> str:
    """The text with every character that a terminal could act on written as an escape."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
