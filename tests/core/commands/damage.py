"""Damages the files of runs in all the ways that a disk, a user or a colleague may.

A damage is a name and a function of the path; afterwards the path may be anything or nothing.
"""

import json
import os
import random
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HARMFUL = "\x1b]0;x\x07\r\x9b2J\u202e\u2028\x7f"
DEEP = "[" * 100_000
Damage = tuple[str, Callable[[Path], None]]
WHOLE: dict[str, bytes] = {
    "empty": b"",
    "random": random.Random(7).randbytes(3000),
    "NUL": bytes(4096),
    "other encoding": '{"step": 1}'.encode("utf-16"),
    "deep": DEEP.encode(),
    "deep object": b'{"a":' * 20_000,
    "deep enough": b"[" * 900 + b"]" * 900,
    "surrogate": b'"\\ud800"\n',
    "huge number": b"1" * 5000 + b"\n",
    "harmful": HARMFUL.encode() + b"\n",
    "long line": b"x" * (1 << 20),
    "two objects": b"{}\n{}\n",
    **{
        f"JSON {text}": text.encode() + b"\n"
        for text in ("[]", "{}", "null", "true", "NaN", '"x"', "[1]", "-1")
    },
}
# Of a key. A number beyond a double, a text that is no path, a text that is another path.
VALUES: list[Any] = [
    *(None, True, -1, 0, 1.5, 10**9, 10**30, 10**400, float("nan"), -float("inf"), 1e300, -1e18),
    *(
        "",
        "x",
        "4799",
        "\ud800",
        "\udcff",
        "a\0b",
        HARMFUL,
        "../../../outside",
        "/",
        "--help",
        "-1",
    ),
    *([], {}, [None], [[]], ["\0"], {"a": None}, {"x": {"y": []}}, {HARMFUL: 1}, {"left_out": [1]}),
]


def replaced(path: Path) -> None:
    """Remove whatever has this path."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def of_content(content: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        replaced(path)
        path.write_bytes(content)

    return write


def link_to(target: str) -> Callable[[Path], None]:
    def link(path: Path) -> None:
        replaced(path)
        path.symlink_to(target)

    return link


def fifo(path: Path) -> None:
    replaced(path)
    os.mkfifo(path)


def folder(path: Path) -> None:
    replaced(path)
    path.mkdir()


def device(path: Path) -> None:
    replaced(path)
    os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))


def large(path: Path) -> None:
    replaced(path)
    path.touch()
    os.truncate(path, 1 << 33)


def types(outside: Path) -> Iterator[Damage]:
    """The damages that make another thing of a file or folder."""
    yield "missing", replaced
    yield "FIFO", fifo
    yield "folder", folder
    yield "large", large
    yield "dangling link", link_to("nowhere")
    yield "link to itself", lambda path: link_to(path.name)(path)
    yield "link to a device", link_to("/dev/zero")
    yield "link to a FIFO", link_to(str(outside / "fifo"))
    yield "link to a folder", link_to(str(outside / "folder"))
    yield "link to a file", link_to(str(outside / "file"))


def contents(text: bytes) -> Iterator[Damage]:
    """The damages of a whole file."""
    for name, content in WHOLE.items():
        yield name, of_content(content)
    yield "half", of_content(text[: len(text) // 2])
    yield "a line more", of_content(text + b'{"x": ')
    yield "a NUL", of_content(text[: len(text) // 3] + b"\0" + text[len(text) // 3 :])
    yield "not UTF-8", of_content(text[: len(text) // 3] + b"\xff" + text[len(text) // 3 :])


def keys(text: bytes, is_lines: bool, chance: random.Random, num_values: int) -> Iterator[Damage]:
    """The damages of each key of a JSON file: missing, and some other values."""
    first = text.split(b"\n", 1)[0] if is_lines else text
    try:
        value = json.loads(first)
    except ValueError:
        return
    for place in places(value):
        for new in [..., *chance.sample(VALUES, min(num_values, len(VALUES)))]:
            changed = json.loads(first)
            holder = changed
            for name in place[:-1]:
                holder = holder[name]
            if new is ...:
                del holder[place[-1]]
            else:
                holder[place[-1]] = new
            written = json.dumps(changed, indent=None if is_lines else 2).encode()
            shown = "missing" if new is ... else ascii(new)[:30]
            where = ".".join(map(str, place))
            yield f"{where}: {shown}", of_content(written + text[len(first) :])


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of each key, and of the first item of each list."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:1])
    for name, inner in items:
        yield (*path, name)
        if isinstance(inner, (dict, list)):
            yield from places(inner, (*path, name))
