"""The files of a training's final state: which they are, and how two runs differ in them."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ...errors import UserError
from .probe.sitecustomize import STATE_SUFFIXES

# Values beside the tensors that another start has otherwise: times, and its own words.
_OF_THE_START = re.compile(
    r"(?i)time(?!step)|second|minute|hour|elapsed|duration|\bargs?\b|argv|resume"
)


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
    values: frozenset[str] = frozenset()
    missing: str = ""
    uncompared: str = ""

    def __bool__(self) -> bool:
        """Return whether there is any difference."""
        return bool(self.tensors or self.values or self.missing)

    def without(self, values: frozenset[str]) -> Difference:
        """Return the difference without `values`, times, and words of the start."""
        names = {each: each.partition(": ")[2] for each in self.values - values}  # in the file
        kept = frozenset(each for each in names if not _OF_THE_START.search(names[each]))
        return replace(self, values=kept)

    def __str__(self) -> str:
        if self.missing:
            return f"it did not write {self.missing}"
        if self.tensors:
            by = "" if self.by == float("inf") else f" by {self.by:.2g}"
            number = "one tensor differs" if self.tensors == 1 else f"{self.tensors} tensors differ"
            return f"{number}, {self.most} most{by}"
        return f"{sorted(self.values)[0]} differs"


def find(home: Path, cwd: Path, pattern: str | None, begun: float, last_step: float) -> list[str]:
    """Return the names of the files of the final state, relative to `home`.

    pattern: which they are, from `cwd`; None for the state files that were written after the last
    step, or else the newest one. Raises: UserError without any.
    """
    if pattern is None:
        paths = [*_state_files(home)]
    else:
        paths = [cwd / name for name in glob.glob(pattern, root_dir=cwd, recursive=True)]
    times = {path: path.stat().st_mtime for path in paths if path.is_file()}
    times = {path: time for path, time in times.items() if time >= begun}
    if not times and pattern is not None:
        raise UserError(f"--final {pattern}: the undisturbed run wrote no such file")
    if not times:
        raise UserError(
            "the undisturbed run wrote no file that could be the final state\n"
            "  hint: --final PATTERN names the files, relative to the working directory"
        )
    if pattern is None:
        after = {path for path, time in times.items() if time >= last_step}
        times = {path: times[path] for path in after or [max(times, key=lambda path: times[path])]}
    return sorted(str(path.relative_to(home)) for path in times)


def visible_name(name: str) -> str:
    """Return the name of a file as the user knows it."""
    return name.removeprefix("code/")


def _state_files(home: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(home):
        folders[:] = [name for name in folders if name not in (".git", "__pycache__")]
        paths = (Path(folder, name) for name in names)
        yield from (
            each for each in paths if each.suffix in STATE_SUFFIXES and not each.is_symlink()
        )
