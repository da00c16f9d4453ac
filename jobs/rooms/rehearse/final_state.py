"""The files of a training's final state: which they are, and how two runs differ in them."""

from __future__ import annotations

import glob
import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...errors import FailedError, UserError
from .probe.sitecustomize import STATE_SUFFIXES
from .subjects import PROBE

# Values beside the tensors that another start has otherwise: times, and its own words.
_OF_THE_START = re.compile(
    r"(?i)time(?!step)|second|minute|hour|elapsed|duration|\bargs?\b|argv|resume"
)


@dataclass(frozen=True)
class Difference:
    """How the final files of a run differ from those of the undisturbed run.

    tensors: how many differ; most: the one that differs most, and by how much; values: the keys of
    others that differ; missing: the first file that it did not write.
    """

    tensors: int = 0
    most: str = ""
    by: float = 0.0
    values: frozenset[str] = frozenset()
    missing: str = ""

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
    if pattern is not None:
        paths = [cwd / name for name in glob.glob(pattern, root_dir=cwd, recursive=True)]
        paths = [path for path in paths if path.is_file() and path.stat().st_mtime >= begun]
        if not paths:
            raise UserError(f"--final {pattern}: the undisturbed run wrote no such file")
        return sorted(str(path.relative_to(home)) for path in paths)
    times = {path: path.stat().st_mtime for path in _state_files(home)}
    times = {path: time for path, time in times.items() if time >= begun}
    if not times:
        raise UserError(
            "the undisturbed run wrote no file that could be the final state\n"
            "  hint: --final PATTERN names the files, relative to the working directory"
        )
    after = [path for path, time in times.items() if time >= last_step]
    newest = max(times, key=lambda path: times[path])
    return sorted(str(path.relative_to(home)) for path in (after or [newest]))


def visible_name(name: str) -> str:
    """Return the name of a file as the user knows it."""
    return name.removeprefix("code/")


def _state_files(home: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(home):
        folders[:] = [name for name in folders if name not in (".git", "__pycache__")]
        for name in names:
            path = Path(folder, name)
            if path.suffix in STATE_SUFFIXES and path.is_file() and not path.is_symlink():
                yield path


def compare(
    python: str, names: Sequence[str], reference: Path, homes: Mapping[str, Path]
) -> dict[str, Difference]:
    """Return for each run how its final files differ from those of the reference."""
    pairs = [
        [json.dumps([run, name]), str(home / name), str(reference / name)]
        for run, home in homes.items()
        for name in names
    ]
    command = [python, str(PROBE / "compare_files.py")]
    request = json.dumps(pairs)
    done = subprocess.run(command, input=request, capture_output=True, text=True, check=False)
    if done.returncode:
        raise FailedError(f"the final files cannot be compared:\n{done.stderr[-2000:]}")
    found: dict[str, Difference] = {run: Difference() for run in homes}
    for key, answer in json.loads(done.stdout).items():
        run, name = json.loads(key)
        found[run] = _with(found[run], visible_name(name), answer)
    return found


def _with(known: Difference, name: str, answer: dict[str, Any] | None) -> Difference:
    """Return a difference with that of one more file."""
    if answer is None:
        return replace(known, missing=known.missing or name)
    count, most, by = answer["tensors"]
    values = known.values | {f"{name}: {key}" for key in answer["values"]}
    if count and (by > known.by or not known.tensors):
        known = replace(known, most=f"{name}: {most}", by=by)
    return replace(known, tensors=known.tensors + count, values=values)
