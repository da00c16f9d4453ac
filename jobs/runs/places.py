"""Finds the file and the line that show something: in a traceback, in a log, in attempts.jsonl."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .. import installation, log_text
from ..console import display_path
from ..kinds import Kind
from ..rundir import RunDir

TAIL_LINES = 1000
# A frame of a Python traceback.
FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+)', re.MULTILINE)


@dataclass(frozen=True)
class FileLine:
    """A file, and the line of it that shows something, from 1; None: the whole file."""

    path: Path
    line: int | None = None

    def __str__(self) -> str:
        """Return `train.py:12`, relative to the working directory."""
        return display_path(self.path) + ("" if self.line is None else f":{self.line}")


@dataclass(frozen=True)
class LogLine:
    """A line of a log, and its place."""

    text: str
    place: FileLine


@dataclass(frozen=True)
class CodeFolders:
    """Where the user's own code of a run is.

    frozen: folders with a frozen copy, resolved; the first one is that of the repository.
    kit: the frozen kit. checkout: where the copy was taken; it may be gone.
    """

    frozen: tuple[Path, ...]
    kit: Path
    checkout: Path | None


def code_folders(run_dir: RunDir, repository: str | None) -> CodeFolders:
    """Return the folders of a run's code. repository: of provenance.json."""
    code = run_dir.code.resolve()
    frozen = (code, run_dir.work.resolve(), run_dir.script_code.resolve())
    return CodeFolders(
        frozen, run_dir.kit.resolve(), None if repository is None else Path(repository)
    )


def users_frame(trace: str, code: CodeFolders) -> FileLine | None:
    """Return the last frame of a traceback in the user's own files; None if it has none.

    The file is that of the checkout if it still exists there: the user edits that one.
    """
    for name, line in reversed(FRAME.findall(trace)):
        if name.startswith("<"):  # `python -c`, or code of no file
            continue
        if (path := users_file(Path(name), code)) is not None:
            return FileLine(path, int(line))
    return None


def users_file(path: Path, code: CodeFolders) -> Path | None:
    """Return the user's file of a path in a frozen folder; None for the kit's or a package's."""
    path = Path(os.path.normpath(path if path.is_absolute() else code.frozen[0] / path)).resolve()
    kits = (code.kit, *(installation.HOME / part for part in installation.PARTS))
    if "site-packages" in path.parts or any(path.is_relative_to(each) for each in kits):
        return None
    if code.checkout is not None and path.is_relative_to(code.checkout):
        return path
    folder = next((each for each in code.frozen if path.is_relative_to(each)), None)
    if folder is None:
        return None
    if code.checkout is not None and folder == code.frozen[0]:
        original = code.checkout / path.relative_to(folder)
        return original if original.is_file() else path
    return path


def tail(path: Path) -> list[LogLine]:
    """Return the last lines of a text file as a screen shows them; none if it cannot be read."""
    end = log_text.read_end(path, TAIL_LINES, is_numbered=True)
    lines = [LogLine(text, FileLine(path, number)) for number, text in log_text.number_lines(end)]
    return [line for line in lines if line.text.strip()]


def line_with(lines: Iterable[LogLine], text: str) -> FileLine | None:
    """Return the place of the last line that has this text; None if no line has it."""
    places = [line.place for line in lines if text and text in line.text]
    return places[-1] if places else None


def disk_fault_in(
    lines: Iterable[LogLine], error: re.Pattern[str], texts: dict[str, Kind]
) -> tuple[Kind, FileLine] | None:
    """Return the first line where the kit reports a disk failure, of an attempt without a record.

    A disk that is full or gone keeps a rank from writing its error record; its log was open.
    error: how the kit's processes begin such a line. Other programs write to the same logs, and a
    file that they do not find may be harmless. texts: what libc calls each error.
    """
    for line in lines:
        if error.search(line.text) is None:
            continue
        for text, fault in texts.items():
            if text in line.text:
                return fault, line.place
    return None


def attempt_lines(lines: Iterable[LogLine], attempt: int) -> list[LogLine]:
    """Return the lines of job.log from the opening of an attempt to the opening of the next one."""
    lines_of_attempt: list[LogLine] = []
    is_inside = False
    for line in lines:
        if f"attempt {attempt}: " in line.text and ", rendezvous at " in line.text:
            is_inside = True
        elif f"attempt {attempt + 1}: " in line.text:
            is_inside = False
        if is_inside:
            lines_of_attempt.append(line)
    return lines_of_attempt


def record_line(run_dir: RunDir, attempt: int) -> FileLine:
    """Return the last attempts.jsonl line with an attempt's record; its plan if there is none."""
    start = f'{{"attempt": {attempt},'
    try:
        lines = run_dir.attempts.read_text(encoding="utf-8", errors="replace").split("\n")
    except FileNotFoundError:
        lines = []
    numbers = [number for number, line in enumerate(lines, 1) if line.startswith(start)]
    return (
        FileLine(run_dir.attempts, numbers[-1])
        if numbers
        else FileLine(run_dir.attempt(attempt).plan)
    )
