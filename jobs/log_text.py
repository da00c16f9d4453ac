"""What a screen shows of a log of any shape, read from its end in bounded time and memory.

Other programs write into the logs: progress bars that return to the start of their line a hundred
thousand times, colours, binary bytes, lines of megabytes, files of gigabytes.
"""

import os
import re
from pathlib import Path

from . import shared_files
from .errors import RecordError

BLOCK_BYTES = 1 << 16
# The most that is read of the end of one file.
MAX_BYTES = 1 << 25
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


def read_end(path: Path, max_lines: int = 1000) -> list[str]:
    """Return the last lines of a log as a screen shows them, at most MAX_BYTES of the file.

    [] if it cannot be read.
    """
    blocks: list[bytes] = []
    try:
        with shared_files.open_binary(path) as file:
            size = position = file.seek(0, os.SEEK_END)
            num_lines = 0
            while position and size - position < MAX_BYTES and num_lines <= max_lines:
                begin = max(0, position - BLOCK_BYTES)
                file.seek(begin)
                blocks.append(file.read(position - begin))
                num_lines += blocks[-1].count(b"\n")
                position = begin
    except (OSError, RecordError):
        return []
    lines = b"".join(reversed(blocks)).split(b"\n")
    if not lines[-1]:
        lines.pop()  # the file ends with a newline
    return [*map(_decoded, lines[-max_lines:])]


def last_lines(path: Path, number: int = 20) -> list[str]:
    """Return the last lines of a log that are not empty, each cut; [] if it cannot be read."""
    lines = read_end(path, number)
    return [shorten_line(line, SCREEN_LINE_CHARS) for line in lines if line.strip()]


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
