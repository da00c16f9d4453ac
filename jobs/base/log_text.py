"""What a screen shows of a log of any shape, read from its end in bounded time and memory.

Other programs write into the logs: progress bars that return to the start of their line a hundred
thousand times, colours, binary bytes, lines of megabytes, files of gigabytes.
"""

import os
import re
from pathlib import Path

from . import files
from .errors import RecordError

BLOCK_BYTES = 1 << 16
# The most that is read of the end of one file.
MAX_BYTES = 1 << 25
LINE_CHARS = 2000  # more of one line is left out
SCREEN_LINES = 24
SCREEN_LINE_CHARS = 400


def visible(line: str) -> str:
    """Return what follows a line's last carriage return, the newest state of a bar, uncoloured."""
    return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", line).removesuffix("\r").rpartition("\r")[2]


def shorten_line(line: str, limit: int = LINE_CHARS) -> str:
    """Return a line, or its begin and its end with the number of characters between them."""
    if len(line) <= limit:
        return line
    end = limit // 4
    left_out = len(line) - limit
    return f"{line[: limit - end]} [... {left_out} characters ...] {line[-end:]}"


def on_a_screen(text: str) -> str:
    """Return a text as a screen shows it: its first lines and its last ones, each cut."""
    lines = (visible(line) for line in text.split("\n"))
    shown = [shorten_line(line, SCREEN_LINE_CHARS).rstrip() for line in lines]
    while shown and not shown[-1]:
        shown.pop()
    if len(shown) > SCREEN_LINES:
        end = SCREEN_LINES // 3
        first = SCREEN_LINES - end - 1
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
        with files.open_binary(path) as file:
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
    texts = (visible(line.decode("utf-8", "replace")) for line in lines[-max_lines:])
    return [shorten_line(text) for text in texts]


def last_lines(path: Path, number: int = 20) -> list[str]:
    """Return those of the last lines that are not empty, each cut; [] if it cannot be read."""
    lines = read_end(path, number)
    return [shorten_line(line, SCREEN_LINE_CHARS) for line in lines if line.strip()]
