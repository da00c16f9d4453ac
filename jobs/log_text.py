"""What a screen shows of a log of any shape, read from its end in bounded time and memory.

Other programs write into the logs: progress bars that return to the start of their line a hundred
thousand times, colours, binary bytes, lines of megabytes, files of gigabytes.
"""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from . import shared_files

BLOCK_BYTES = 1 << 16
# The most that is read of the end of one file, and the most that is counted before it.
MAX_BYTES = 1 << 25
MAX_COUNTED_BYTES = 1 << 26
LINE_CHARS = 2000  # more of one line is left out
MAX_LINE_BYTES = 1 << 16  # more of one line is not kept
SCREEN_LINES = 24
SCREEN_LINE_CHARS = 400
# Cursor movements and colours (ECMA-48), titles of windows, returns and control characters.
_ERASE = ("\x1b[K", "\x1b[0K")
_CONTROL = re.compile(
    r"(\r|\x08+|\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]"
    r"|[\x00-\x07\x0b-\x1f\x7f-\x9f]+)"
)


def visible(line: str) -> str:
    """Return what a terminal shows of one line after its last carriage return, without colours."""
    if _CONTROL.search(line) is None:
        return line
    shown, at = "", 0
    for number, part in enumerate(_CONTROL.split(line)):
        if number % 2 == 0:
            shown = shown[:at] + part + shown[at + len(part) :]
            at += len(part)
        elif part == "\r":
            at = 0
        elif part[0] == "\x08":
            at = max(0, at - len(part))
        elif part in _ERASE:
            shown = shown[:at]
        elif part == "\x1b[2K":
            shown = " " * at
    return shown.rstrip() if "\r" in line else shown


def shorten_line(line: str, limit: int = LINE_CHARS) -> str:
    """Return a line, or its begin and its end with the number of characters between them."""
    if len(line) <= limit:
        return line
    end = limit // 4
    left_out = len(line) - limit
    return f"{line[: limit - end]} [... {left_out} characters ...] {line[-end:]}"


def on_a_screen(text: str, lines: int = SCREEN_LINES, chars: int = SCREEN_LINE_CHARS) -> str:
    """Return a text as a screen shows it: its first lines and its last ones, each cut."""
    shown = [shorten_line(visible(line), chars).rstrip() for line in text.split("\n")]
    while shown and not shown[-1]:
        shown.pop()
    if len(shown) > lines:
        end = lines // 3
        first = lines - end - 1
        left_out = len(shown) - first - end
        shown = [*shown[:first], f"[... {left_out} lines ...]", *shown[-end:]]
    return "\n".join(shown)


def first_line(text: str) -> str:
    """Return the first line of a text of several lines, for a table or one line of a log."""
    return next(iter(text.strip().splitlines()), "")


def behind_first_line(text: str, more: str) -> str:
    """Return a text, perhaps of several lines, with more at the end of its first line."""
    first, newline, rest = text.partition("\n")
    return f"{first}{more}{newline}{rest}"


@dataclass(frozen=True)
class LogEnd:
    """The last lines of a log, as a screen shows them.

    first: the number of the first of them, from 1; None behind more than MAX_COUNTED_BYTES.
    bytes_before: how much of the file is before them.
    """

    lines: tuple[str, ...] = ()
    first: int | None = 1
    bytes_before: int = 0

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def read_end(path: Path, max_lines: int = 1000, is_numbered: bool = False) -> LogEnd:
    """Return the last lines of a file, at most MAX_BYTES of it; none if it cannot be read.

    is_numbered: count the lines before them; else `first` is 1 only where these are all.
    """
    try:
        with shared_files.open_binary(path) as file:
            size = file.seek(0, os.SEEK_END)
            start = _start_of(file, size, max_lines)
            file.seek(0)
            first: int | None = 1
            if start > 0:
                is_counted = is_numbered and start <= MAX_COUNTED_BYTES
                first = 1 + _newlines(file, start) if is_counted else None
            file.seek(start)
            data = file.read(size - start)
    except OSError:
        return LogEnd()
    raw = data.split(b"\n")
    if raw and not raw[-1]:
        raw.pop()  # the file ends with a newline
    return LogEnd(tuple(map(_decoded, raw)), first, start)


def last_lines(path: Path, number: int = 20) -> list[str]:
    """Return the last lines of a log that are not empty, each cut; [] if it cannot be read."""
    lines = read_end(path, number).lines
    return [shorten_line(line, SCREEN_LINE_CHARS) for line in lines if line.strip()]


def start_of_last(path: Path, lines: int) -> int:
    """Return the offset of the last lines of a file, at most MAX_BYTES before its end.

    A last line may lack its newline. Raises: OSError.
    """
    with shared_files.open_binary(path) as file:
        return _start_of(file, file.seek(0, os.SEEK_END), lines)


def _start_of(file: BinaryIO, size: int, lines: int) -> int:
    position, ends, stop = size, 0, max(0, size - MAX_BYTES)
    while position > stop and lines:
        begin = max(stop, position - BLOCK_BYTES)
        file.seek(begin)
        block = file.read(position - begin)
        at = len(block)
        while (at := block.rfind(b"\n", 0, at)) >= 0:
            if begin + at + 1 == size:
                continue  # it ends the last line
            ends += 1
            if ends == lines:
                return begin + at + 1
        position = begin
    return stop if lines else size


def _newlines(file: BinaryIO, end: int) -> int:
    count = 0
    while end > 0 and (block := file.read(min(end, 1 << 20))):
        count += block.count(b"\n")
        end -= len(block)
    return count


def _decoded(raw: bytes) -> str:
    if len(raw) > MAX_LINE_BYTES:
        # What a return has left visible is behind it, and a line without one begins with its sense.
        begin = b"" if b"\r" in raw[-MAX_LINE_BYTES:] else raw[:LINE_CHARS]
        left_out = len(raw) - len(begin) - MAX_LINE_BYTES
        if not begin:
            raw = raw[-MAX_LINE_BYTES:].partition(b"\r")[2]
        else:
            middle = f" [... {left_out} bytes ...] ".encode()
            raw = begin + middle + raw[-MAX_LINE_BYTES:]
    return shorten_line(visible(raw.decode("utf-8", "replace")))


@dataclass
class Screen:
    """Turns the blocks of a growing log into what a screen shows of it, line by line."""

    _decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )
    is_terminal: bool = True  # else a line that is overwritten is shown when it is complete
    _line: str = ""  # the part of the last line that is kept
    _shown: str = ""  # what is on the screen of it
    _left_out: int = 0

    @property
    def is_in_line(self) -> bool:
        """Whether the last line that was shown has no newline yet."""
        return bool(self._shown)

    def lines(self, block: bytes) -> Iterable[str]:
        """Yield what a further block adds to the screen, up to its last newline."""
        *complete, rest = self._decoder.decode(block).split("\n")
        for text in complete:
            self._add(text)
            yield self.rest() + "\n"
            self._line, self._shown, self._left_out = "", "", 0
        self._add(rest)

    def growing(self) -> str:
        """Return what the last line, which may still be overwritten, adds to the screen."""
        if self._left_out or len(self._line) > LINE_CHARS:
            return ""
        is_plain = _CONTROL.search(self._line) is None
        return self.rest() if self.is_terminal or is_plain else ""

    def rest(self) -> str:
        """Return what the last line adds to the screen as it is now."""
        shown, before = self._visible(), self._shown
        self._shown = shown
        if shown.startswith(before):
            return shown[len(before) :]
        return f"\r{shown}\x1b[K" if self.is_terminal else f"\n{shown}"

    def _visible(self) -> str:
        shown = shorten_line(visible(self._line))
        return f"{shown} [... {self._left_out} characters ...]" if self._left_out else shown

    def _add(self, text: str) -> None:
        self._line += text
        if len(self._line) <= MAX_LINE_BYTES:
            return
        if "\r" in self._line:
            head, _, tail = self._line.rpartition("\r")
            self._line = visible(head) + "\r" + tail
        if len(self._line) > MAX_LINE_BYTES:
            self._left_out += len(self._line) - LINE_CHARS
            self._line = self._line[:LINE_CHARS]


def number_lines(end: LogEnd) -> Sequence[tuple[int | None, str]]:
    """Return each line of an end with its number in the file; None where that is not known."""
    return [
        (None if end.first is None else end.first + number, line)
        for number, line in enumerate(end.lines)
    ]
