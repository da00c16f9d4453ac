"""Writes what the kit prints. Characters that could control a terminal are shown escaped.

Standard library only.
"""

import contextlib
import io
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

STDERR = 2
TIME_FORMAT = "%Y-%m-%d %H:%M:%S "
LAYOUT = "\n\t"
# Spaces, and joiners of scripts and emoji: isprintable() denies them, and no terminal obeys them.
HARMLESS = "\xa0\u202f\u3000\u200c\u200d"
_has_time = False


def begin_lines_with_time() -> None:
    """Begin each of the kit's own lines with the local time: this process writes to a log."""
    global _has_time
    _has_time = True


def with_time(text: str) -> str:
    """Return `text` with the local time before each line, if `begin_lines_with_time` was called."""
    if not _has_time:
        return text
    now = time.strftime(TIME_FORMAT)
    return "\n".join(now + line for line in text.split("\n"))


def printable(text: str, keep: str = "") -> str:
    """Return a text with an escape for each character, not in `keep`, that a terminal may obey.

    Also for a lone surrogate, which stands for a byte of a file's name, and which no codec writes.
    """
    for char in {*text} - {*keep, *HARMLESS}:  # few, also in a log of megabytes
        if not char.isprintable():
            text = text.replace(char, char.encode("unicode_escape").decode())
    return text


class Escaped:
    """A text stream that writes to another one, and escapes all but the ends of lines and tabs."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        if isinstance(stream, io.TextIOWrapper):  # LC_ALL=C or PYTHONIOENCODING may say ASCII
            stream.reconfigure(errors="backslashreplace")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text; the name print() calls."""
        return int(self._stream.write(printable(text, LAYOUT)))


def escape_output() -> None:
    """Escape what this process prints from now on: names, reasons and logs may have any bytes."""
    for name in ("stdout", "stderr"):
        if not isinstance(stream := getattr(sys, name), Escaped | None):  # None: it is closed
            setattr(sys, name, Escaped(stream))


def print_line(text: str) -> None:
    """Write a line to stderr if possible: the disk of a log may be full.

    Bypasses Python's buffer: what stays in it fails once more at exit, with exit status 120.
    """
    with contextlib.suppress(OSError):
        os.write(STDERR, printable(f"{with_time(text)}\n", LAYOUT).encode())


def discard_output() -> None:
    """Discard later output to stdout and stderr: the process that read it is gone."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.dup2(null, sys.stderr.fileno())
    os.close(null)


def display_path(path: Path) -> str:
    """Return a path relative to the working directory if it lies below it, else the whole path."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, FileNotFoundError):
        return str(path)


def user_name(uid: int | None) -> str:
    """Return the name of a user; the uid where this host does not know the user."""
    import pwd  # status, which is often called, does without

    try:
        return "unknown" if uid is None else pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def quantity(number: int, noun: str) -> str:
    """Return `1 node`, `2 nodes`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def number_ranges(numbers: Iterable[int], width: int = 0) -> str:
    """Return `1-3,7`: numbers in their order, each with at least `width` digits."""
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1] = [ranges[-1][0], number]
        else:
            ranges.append([number])
    return ",".join("-".join(f"{number:0{width}d}" for number in each) for each in ranges)


def format_duration(seconds: float, max_units: int = 4) -> str:
    """Return `4 h 30 min`: the units that are not zero, at most `max_units` of the largest."""
    parts, rest = [], round(seconds) if abs(seconds) < 1e12 else 0  # NaN, of a script perhaps
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:max_units]) or f"{abs(seconds):.0f} s"


class BestEffort:
    """Runs blocks and ignores their OSError; logs the first one."""

    def __init__(self, writer: str) -> None:
        self._writer = writer
        self._is_logged = False

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Run the block; an OSError in it ends the block only."""
        try:
            yield
        except OSError as error:
            if not self._is_logged:
                print_line(f"{self._writer}: continuing without its records: {error}")
                self._is_logged = True


def format_metric(name: str, value: float | None) -> str:
    """Return `accuracy 98.89%`, `9 tokens/s`: a metric for people, without eval_ and train_."""
    short = name.removeprefix("eval_").removeprefix("train_")
    if value is None:
        return f"{short} ?"
    if short in ("samples_per_s", "tokens_per_s"):
        number = f"{value:.0f}" if value >= 100 else f"{value:.3g}"
        return f"{number} {short.removesuffix('_per_s')}/s"
    is_share = short in ("accuracy", "mfu", "gpu_use")
    return f"{short} {value:.2%}" if is_share else f"{short} {value:.4g}"


def format_metrics(metrics: Mapping[str, float | None]) -> str:
    """Return `loss 0.5  held-out accuracy 98.89%`: an evaluation's come last, with this label."""
    names = sorted(metrics, key=lambda name: name.startswith("eval_"))
    parts = [format_metric(name, metrics[name]) for name in names]
    first = next((place for place, name in enumerate(names) if name.startswith("eval_")), None)
    if first is not None:
        parts[first] = f"held-out {parts[first]}"
    return "  ".join(parts)
