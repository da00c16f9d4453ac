"""The files of a training's final state: which they are, and how two runs differ in them."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ...base.errors import UserError
from .probe.sitecustomize import STATE_SUFFIXES

OF_TRAINING = ("code", "checkpoints", "work")  # folders: the others have records of the kit
TEXTS = (".txt", ".log", ".jsonl")  # what a training prints, or appends to
# Values beside the tensors that another start has otherwise: times, and its own words.
_OF_THE_START = re.compile(
    r"(?i)time(?!step)|second|minute|hour|elapsed|duration|\bargs?\b|argv|resume|attempt"
)
# In the name of a folder or file.
_TIME = re.compile(r"20\d\d-?[01]\d-?[0-3]\d[^/]*|(?<=/)[0-2]\d-[0-5]\d-[0-5]\d(?=/)")
_ID = re.compile(r"[^\W_]*\d[^\W_]*|\b[a-f]{4}\b")  # as of a process, a Unix time, a UUID


@dataclass(frozen=True)
class Difference:
    """How the final files of a run differ from those of the undisturbed run.

    tensors: how many differ; most: the one that differs most, and by how much; values: the keys of
    others that differ; missing: the first file that it did not write; uncompared: the first that
    has objects which are not loaded, and why. That is no difference, and no equality.
    """

    tensors: int = 0
    most: str = ""
    by: float = 0.0
    values: Collection[str] = frozenset()
    missing: str = ""
    uncompared: str = ""

    def __bool__(self) -> bool:
        return bool(self.tensors or self.values or self.missing)

    def __or__(self, other: Difference) -> Difference:
        most = max(self, other, key=lambda each: (each.tensors > 0, each.by))  # the first if alike
        return Difference(
            self.tensors + other.tensors,
            most.most,
            most.by,
            {*self.values, *other.values},
            self.missing or other.missing,
            self.uncompared or other.uncompared,
        )

    def without(self, values: Collection[str]) -> Difference:
        """Return the difference without `values`, times, and words of the start."""
        new = {*self.values} - {*values}
        kept = [each for each in new if not _OF_THE_START.search(each.partition(": ")[2])]
        return replace(self, values=kept)

    def __str__(self) -> str:
        if self.missing:
            return f"it did not write {self.missing}"
        if self.tensors:
            by = "" if self.by == float("inf") else f" by {self.by:.2g}"
            number = "one tensor differs" if self.tensors == 1 else f"{self.tensors} tensors differ"
            return f"{number}, {self.most} most{by}"
        return f"{sorted(self.values)[0]} differs"


def find(
    home: Path, cwd: Path, pattern: str | None, begun: float, last_step: float
) -> tuple[list[str], list[str]]:
    """Return the names of the files of the final state, and of others, relative to `home`.

    pattern: which they are, from `cwd`, and no others; None for the state files that were written
    after the last step, or else the newest one. Raises: UserError without a file of the pattern.
    """
    if pattern is None:
        paths = [*files(home)]
    else:
        paths = [cwd / name for name in glob.glob(pattern, root_dir=cwd, recursive=True)]
    times = {x: t for x in paths if x.is_file() and (t := x.stat().st_mtime) >= begun}
    if not times and pattern is not None:
        raise UserError(f"--final {pattern}: the undisturbed run wrote no such file")
    names = {path: str(path.relative_to(home)) for path in times}
    if pattern is not None:
        return sorted(names.values()), []
    states = [path for path in times if path.suffix in STATE_SUFFIXES]
    last = [path for path in states if times[path] >= last_step]
    newest = sorted(states, key=lambda path: times[path])[-1:]
    final = {names[path] for path in last or newest}
    others = {name for name in names.values() if of_training(name) and not _is_of_other(name)}
    return sorted(final), sorted(others - final)


def of_training(name: str) -> str:
    """Return the name of a file as the user knows it; empty for a record of the kit."""
    parts = name.split("/")
    first = next((place for place, part in enumerate(parts[:3]) if part in OF_TRAINING), None)
    if first is None:  # beside the repository, as in ../outputs
        return name if name.endswith(STATE_SUFFIXES) else ""
    return "/".join(parts[first + (parts[first] != "checkpoints") :])


def of_run(home: Path, name: str, known: Collection[str]) -> Path:
    """Return the path of a file in another run.

    In a part of its name that has a time, or that is not `known` of a second run, such as with an
    id, words with digits may be others.
    """
    parts = [part if part in known else _ID.sub("*", part) for part in glob.escape(name).split("/")]
    alike = [] if (home / name).exists() else home.glob(_TIME.sub("*", "/".join(parts)))
    return max(alike, key=lambda path: path.stat().st_mtime, default=home / name)


def visible_name(name: str) -> str:
    return of_training(name) or name


def _is_of_other(name: str) -> bool:
    """Return whether it is a text, or describes a checkpoint, such as its check sums."""
    is_of_step = re.search(r"\d", os.path.dirname(of_training(name))) is not None
    return name.endswith(TEXTS) or (name.endswith(".json") and is_of_step)


def files(home: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(home):
        folders[:] = [name for name in folders if name not in (".git", "__pycache__")]
        yield from (path for name in names if not (path := Path(folder, name)).is_symlink())
