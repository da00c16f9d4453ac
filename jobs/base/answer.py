"""What a command answers to a program: with --json one object on stdout; all else goes to stderr.

docs/commands.md has the values of each command. Standard library only.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

VERSION = 1  # it rises where a value goes, or gets another meaning; not where one comes
Reader = Callable[[dict[str, Any]], None]
_reader: Reader | None = None


@contextlib.contextmanager
def read_by(reader: Reader) -> Iterator[None]:
    """Run a block whose answers a program reads, and whose `print`s go to stderr."""
    global _reader
    before, _reader = _reader, reader
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        _reader = before


def is_read() -> bool:
    """Return whether a program reads the answer."""
    return _reader is not None


def give(**values: Any) -> bool:
    """Give the values to the program, if one reads; returns whether one does."""
    if _reader is not None:
        _reader(values)
    return is_read()


def on_stdout(command: str) -> Reader:
    """Return a reader that prints the first answer: what comes later only describes its end."""
    stdout, left = sys.stdout, [command]

    def read(values: dict[str, Any]) -> None:
        import json  # few commands need it

        if left:
            found = {"version": VERSION, "command": left.pop(), **values}
            found = json.loads(json.dumps(found), parse_constant=lambda _: None)  # NaN is no JSON
            print(json.dumps(found, indent=2), file=stdout, flush=True)

    return read
