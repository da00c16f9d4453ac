"""Counts what this process does to the files of a folder: each call that may wait for a disk."""

import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

# Calls with an audit event. Source: the table of audit events in Python's documentation.
AUDITED = (
    *("open", "os.listdir", "os.scandir", "os.rename", "os.link", "os.symlink"),
    *("os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod"),
)
OTHERS = ("stat", "lstat", "readlink", "access", "fsync", "fdatasync")
_watching: list["Operations"] = []
_hooks: list[object] = []  # an audit hook cannot be removed, so there is one for all


class Operations(Counter[tuple[str, str]]):
    """How often each (operation, path) happened. Paths are relative to the folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = str(folder)

    def note(self, name: str, *paths: object) -> None:
        """Count an operation once if one of its paths lies in the folder."""
        for path in paths:
            if isinstance(path, (str, os.PathLike)):
                inner = os.path.relpath(os.path.abspath(path), self._folder)
                if inner.split(os.sep, 1)[0] != "..":
                    self[name, inner] += 1
                    return


def _hook(event, arguments):
    if _watching and event in AUDITED:
        _watching[0].note(event, *arguments[:2])


@contextmanager
def watched(folder: Path) -> Iterator[Operations]:
    """A block whose operations on a folder are counted."""
    if not _hooks:
        sys.addaudithook(_hook)
        _hooks.append(_hook)
    operations = Operations(folder)
    with mock.patch.multiple(os, **{name: _noting(name, getattr(os, name)) for name in OTHERS}):
        _watching.append(operations)
        try:
            yield operations
        finally:
            _watching.clear()


def _noting(name, call):
    read_link = os.readlink

    def noted(path, *args, **kwargs):
        if _watching:
            is_descriptor = isinstance(path, int)
            _watching[0].note(name, read_link(f"/proc/self/fd/{path}") if is_descriptor else path)
        return call(path, *args, **kwargs)

    return noted
